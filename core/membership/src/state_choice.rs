//! Which of several states a client calls.
//!
//! One state leads, and the others pass on what only the leader may do. A client calls the leader if it knows which that is, because another state
//! is one more step on the way; an older leader that does not know yet that it leads no more is told apart by its term.

/// What a client knows of the state at one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateContact {
    /// It was not asked yet, or has not answered for the first time.
    Asked,
    /// It does not answer.
    Away,
    /// It answers.
    Answers {
        /// It says that it leads.
        leads: bool,
        /// The term of the leader that it knows; 0: of none.
        term: u64,
    },
}

/// Which address is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateChoice {
    /// None yet: one that leads may still answer.
    Wait,
    /// The one of this index.
    Call(usize),
    /// None: nobody answers.
    Nobody,
}

/// Chooses among states in the order of their addresses. The leader of the highest term is called, and between equals the present one. While
/// nobody leads, the present one is called as long as it answers, otherwise the first that answers; for that, a patient client waits until
/// all have answered once.
pub fn choose(contacts: &[StateContact], present: Option<usize>, is_patient: bool) -> StateChoice {
    // The greatest is called: what leads, of the highest term, the present one, the first of the rest.
    let rank = |idx: usize, contact: &StateContact| match *contact {
        StateContact::Answers { leads, term } => {
            let term = if leads { term } else { 0 };
            Some((leads, term, present == Some(idx), std::cmp::Reverse(idx)))
        }
        StateContact::Asked | StateContact::Away => None,
    };
    let best = contacts.iter().enumerate().filter_map(|(idx, contact)| rank(idx, contact)).max();
    let is_open = contacts.contains(&StateContact::Asked);
    match best {
        Some((leads, _, is_present, std::cmp::Reverse(idx))) if leads || is_present => StateChoice::Call(idx),
        Some(_) if is_open && is_patient => StateChoice::Wait,
        Some((.., std::cmp::Reverse(idx))) => StateChoice::Call(idx),
        None if is_open => StateChoice::Wait,
        None => StateChoice::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        StateChoice::{Call, Nobody, Wait},
        StateContact::{Asked, Away},
        *,
    };

    const STANDS_BY: StateContact = StateContact::Answers { leads: false, term: 9 };

    const fn leads(term: u64) -> StateContact {
        StateContact::Answers { leads: true, term }
    }

    #[test]
    fn the_leader_of_the_highest_term_is_called() {
        for (contacts, present, expected) in [
            (&[leads(1)][..], None, Call(0)),
            (&[STANDS_BY, leads(3), Asked], None, Call(1)),
            (&[leads(3), leads(4), leads(2)], Some(0), Call(1)),
            (&[leads(4), leads(4)], Some(1), Call(1)),
            (&[leads(4), leads(4)], None, Call(0)),
            (&[leads(0), STANDS_BY], Some(1), Call(0)),
            (&[Away, leads(4)], Some(0), Call(1)),
        ] {
            for is_patient in [true, false] {
                assert_eq!(choose(contacts, present, is_patient), expected, "{contacts:?} {present:?}");
            }
        }
    }

    #[test]
    fn while_nobody_leads_one_that_answers_is_called_and_kept() {
        for (contacts, present, expected) in [
            (&[STANDS_BY, STANDS_BY][..], None, Call(0)),
            (&[STANDS_BY, STANDS_BY], Some(1), Call(1)),
            (&[STANDS_BY, Away], Some(1), Call(0)),
            (&[Away, STANDS_BY], None, Call(1)),
            (&[Away, Away], Some(1), Nobody),
        ] {
            for is_patient in [true, false] {
                assert_eq!(choose(contacts, present, is_patient), expected, "{contacts:?} {present:?}");
            }
        }
    }

    #[test]
    fn a_leader_that_may_still_answer_is_waited_for_with_patience() {
        assert_eq!(choose(&[STANDS_BY, Asked], None, true), Wait);
        assert_eq!(choose(&[STANDS_BY, Asked], None, false), Call(0));
        assert_eq!(choose(&[Asked, STANDS_BY], None, false), Call(1));
        for is_patient in [true, false] {
            assert_eq!(choose(&[Away, Asked], None, is_patient), Wait, "nobody else could be called");
            assert_eq!(choose(&[Asked, Asked], None, is_patient), Wait);
        }
    }
}
