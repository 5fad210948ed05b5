//! The life of a container, as YARN's ResourceManager has it (RMContainer).

/// Where a container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum YarnContainerState {
    /// Asked for.
    New,
    /// Room is held for it on a node.
    Reserved,
    /// It has a place, and its master does not know yet.
    Allocated,
    /// Its master knows.
    Acquired,
    /// Its node has started it.
    Running,
    /// It ended by itself, or its node ended it.
    Completed,
    /// Nobody started it in time.
    Expired,
    /// Its master gave it back.
    Released,
    /// The scheduler took it back.
    Killed,
}

/// What happens to a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum YarnContainerEvent {
    /// It has a place.
    Start,
    /// Room is held for it.
    Reserve,
    /// Its master fetches it.
    Acquire,
    /// Its node has started it.
    Launch,
    /// Its node says that it ended.
    Finish,
    /// Its master gives it back.
    Release,
    /// Nobody has started it in time.
    Expire,
    /// The scheduler takes it back.
    Kill,
    /// The adapter has started again.
    Recover {
        /// Its node says that it has ended.
        has_ended: bool,
    },
}

/// What a container has done when its state changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum YarnContainerEffect {
    /// Count the time in which it must be started.
    Watch,
    /// Stop counting.
    Unwatch,
    /// Tell its attempt that it has a place.
    TellAllocated,
    /// Tell its attempt that it has ended.
    TellEnded,
    /// Stop it on its node.
    Stop,
}

/// What everybody sees of a container's state (ContainerState).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PublicContainerState {
    /// Not started.
    New,
    /// Started.
    Running,
    /// Over.
    Complete,
}

impl YarnContainerState {
    /// Where an event leads to, and what is to be done. `None`: the event does not happen in this state.
    pub fn after(self, event: YarnContainerEvent) -> Option<(Self, &'static [YarnContainerEffect])> {
        use YarnContainerEffect as Do;
        use YarnContainerEvent as On;
        const ENDED: &[YarnContainerEffect] = &[Do::TellEnded];
        const STOPPED: &[YarnContainerEffect] = &[Do::Unwatch, Do::Stop, Do::TellEnded];
        let stays = (self, &[][..]);
        let next = match (self, event) {
            (Self::New | Self::Reserved, On::Start) => (Self::Allocated, &[Do::TellAllocated][..]),
            (Self::New | Self::Reserved, On::Reserve) => (Self::Reserved, &[][..]),
            (Self::New | Self::Reserved, On::Kill) => (Self::Killed, &[][..]),
            (Self::New, On::Recover { has_ended: false }) => (Self::Running, &[][..]),
            (Self::New, On::Recover { has_ended: true }) => (Self::Completed, ENDED),
            (Self::Reserved, On::Release) => (Self::Released, &[][..]),
            (Self::Allocated, On::Acquire) => (Self::Acquired, &[Do::Watch][..]),
            (Self::Allocated, On::Expire) => (Self::Expired, ENDED),
            (Self::Allocated, On::Kill) => (Self::Killed, ENDED),
            (Self::Acquired, On::Launch) => (Self::Running, &[Do::Unwatch][..]),
            (Self::Acquired, On::Finish) => (Self::Completed, &[Do::Unwatch, Do::TellEnded][..]),
            (Self::Acquired, On::Expire) => (Self::Expired, STOPPED),
            (Self::Acquired | Self::Running, On::Release) => (Self::Released, STOPPED),
            (Self::Acquired | Self::Running, On::Kill) => (Self::Killed, STOPPED),
            (Self::Running, On::Finish) => (Self::Completed, ENDED),
            (Self::Running, On::Expire) => stays,
            (Self::Completed, On::Expire | On::Release | On::Kill) => stays,
            (Self::Expired, On::Release | On::Kill) => stays,
            (Self::Released | Self::Killed, On::Expire | On::Release | On::Kill | On::Finish) => stays,
            _ => return None,
        };
        Some(next)
    }

    /// What everybody sees.
    pub fn public(self) -> PublicContainerState {
        match self {
            Self::New | Self::Reserved | Self::Allocated | Self::Acquired => PublicContainerState::New,
            Self::Running => PublicContainerState::Running,
            Self::Completed | Self::Expired | Self::Released | Self::Killed => PublicContainerState::Complete,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [(&str, YarnContainerState); 9] = [
        ("New", YarnContainerState::New),
        ("Reserved", YarnContainerState::Reserved),
        ("Allocated", YarnContainerState::Allocated),
        ("Acquired", YarnContainerState::Acquired),
        ("Running", YarnContainerState::Running),
        ("Completed", YarnContainerState::Completed),
        ("Expired", YarnContainerState::Expired),
        ("Released", YarnContainerState::Released),
        ("Killed", YarnContainerState::Killed),
    ];
    const EVENTS: [(&str, YarnContainerEvent); 10] = [
        ("start", YarnContainerEvent::Start),
        ("reserve", YarnContainerEvent::Reserve),
        ("acquire", YarnContainerEvent::Acquire),
        ("launch", YarnContainerEvent::Launch),
        ("finish", YarnContainerEvent::Finish),
        ("release", YarnContainerEvent::Release),
        ("expire", YarnContainerEvent::Expire),
        ("kill", YarnContainerEvent::Kill),
        ("recover", YarnContainerEvent::Recover { has_ended: false }),
        ("recover-ended", YarnContainerEvent::Recover { has_ended: true }),
    ];

    /// Every pair that is allowed, as YARN's ResourceManager has them.
    const TABLE: &str = "\
New: start Allocated, kill Killed, reserve Reserved, recover Running, recover-ended Completed
Reserved: reserve Reserved, start Allocated, kill Killed, release Released
Allocated: acquire Acquired, expire Expired, kill Killed
Acquired: launch Running, finish Completed, release Released, expire Expired, kill Killed
Running: finish Completed, kill Killed, release Released, expire Running
Completed: expire Completed, release Completed, kill Completed
Expired: release Expired, kill Expired
Released: expire Released, release Released, kill Released, finish Released
Killed: expire Killed, release Killed, kill Killed, finish Killed
";

    #[test]
    fn every_pair_is_as_in_yarn() {
        for (line, (from, state)) in TABLE.lines().zip(STATES) {
            let (name, cells) = line.split_once(": ").unwrap();
            assert_eq!(name, from);
            let cells: Vec<(&str, &str)> =
                cells.split(", ").map(|cell| cell.split_once(' ').unwrap()).collect();
            let mut n_allowed = 0;
            for (event_name, event) in EVENTS {
                let expected = cells.iter().find(|(name, _)| *name == event_name).map(|(_, to)| *to);
                let found = state.after(event);
                let to = found.map(|(to, _)| STATES.iter().find(|(_, state)| *state == to).unwrap().0);
                assert_eq!(to, expected, "{from} on {event_name}");
                n_allowed += usize::from(found.is_some());
            }
            assert_eq!(n_allowed, cells.len(), "{from}");
        }
    }

    #[test]
    fn an_end_is_told_once() {
        // Whatever happens to a container, its attempt hears of its end exactly once if it heard of its place.
        for (_, start) in EVENTS {
            for (_, second) in EVENTS {
                for (_, third) in EVENTS {
                    for (_, fourth) in EVENTS {
                        let mut state = YarnContainerState::New;
                        let (mut n_told, mut n_ended) = (0, 0);
                        for event in [start, second, third, fourth] {
                            let Some((next, effects)) = state.after(event) else { continue };
                            state = next;
                            let n = |wanted| effects.iter().filter(|effect| **effect == wanted).count();
                            n_told += n(YarnContainerEffect::TellAllocated);
                            n_ended += n(YarnContainerEffect::TellEnded);
                        }
                        let is_over = state.public() == PublicContainerState::Complete;
                        assert!(n_ended <= 1 && (n_ended == 0 || is_over));
                        assert!(
                            n_told == 0 || n_ended == usize::from(is_over),
                            "{start:?} {second:?} {third:?} {fourth:?}"
                        );
                    }
                }
            }
        }
    }
}
