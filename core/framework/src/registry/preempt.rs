//! The plugins of preemption, called by name where a search asks (hot path).

use crate::{
    plugins::{candidates, victims},
    point::{CandidateCost, CountedVictim, Plugin, Spared, VictimInput, VictimRule, WholeUnit},
};

/// A plugin of preemption, for profiles and the docs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreemptionEntry {
    /// [`Plugin::NAME`].
    pub name: &'static str,
    /// [`Plugin::DOC`].
    pub doc: &'static str,
}

const fn entry<P: Plugin>() -> PreemptionEntry {
    PreemptionEntry { name: P::NAME, doc: P::DOC }
}

/// Lists the rules for victims for profiles, and calls each of them by name.
macro_rules! victim_rules {
    ($($module:ident::$rule:ident),* $(,)?) => {
        /// Every rule for victims, in the order in which they are asked: the first one that refuses says why.
        pub static VICTIM_RULES: [PreemptionEntry; [$(stringify!($rule)),*].len()] =
            [$(entry::<victims::$module::$rule>()),*];

        /// Whether a running unit may leave for a seeker: the one check of schedulers and the binder.
        ///
        /// # Errors
        /// What the first rule says that refuses it.
        #[inline]
        pub fn may_leave(of: &VictimInput<'_>) -> Result<(), Spared> {
            $( <victims::$module::$rule as VictimRule>::check(of)?; )*
            Ok(())
        }

        /// Whether a unit may leave whole that would be too small without its victims.
        #[inline]
        pub fn may_leave_whole(of: &WholeUnit) -> bool {
            $( <victims::$module::$rule as VictimRule>::check_whole(of) )&&*
        }
    };
}

victim_rules![
    not_leaving::NotLeaving,
    unreserved::Unreserved,
    same_pool::SamePool,
    preemptible::Preemptible,
    lower_rank::LowerRank,
    no_loop::NoLoop,
    min_run::MinRun,
    disruption_budget::DisruptionBudget,
    master_last::MasterLast,
    whole_gang::WholeGang,
];

/// Lists the costs of places for profiles, and adds each of them up by name.
macro_rules! candidate_costs {
    ($($module:ident::$cost:ident),* $(,)?) => {
        /// Every cost of places, in the order in which they are compared if a profile says nothing.
        pub static CANDIDATE_COSTS: [PreemptionEntry; N_COSTS] =
            [$(entry::<candidates::$module::$cost>()),*];

        /// How many there are.
        const N_COSTS: usize = [$(stringify!($cost)),*].len();

        impl PlaceCost {
            /// What a place costs for which nobody leaves.
            pub const NOBODY: Self = Self([$(<candidates::$module::$cost as CandidateCost>::NOBODY),*]);

            /// Returns what it costs if one more leaves.
            #[inline]
            pub fn with(self, victim: &CountedVictim) -> Self {
                let mut each = self.0.into_iter();
                Self([$(<candidates::$module::$cost as CandidateCost>::with(
                    each.next().unwrap_or(0),
                    victim,
                )),*])
            }
        }
    };
}

candidate_costs![
    no_victims::NoVictims,
    fewest_masters::FewestMasters,
    lowest_highest_rank::LowestHighestRank,
    lowest_rank_sum::LowestRankSum,
    fewest_victims::FewestVictims,
    fewest_gangs::FewestGangs,
    least_lost_work::LeastLostWork,
    latest_start::LatestStart,
];

/// What a place costs, by each of [`CANDIDATE_COSTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceCost([i64; N_COSTS]);

/// The same in the order of a profile: the least is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CandidateKey([i64; N_COSTS]);

/// The order in which the costs of places are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CandidateSort {
    /// Indices in [`CANDIDATE_COSTS`]; `None`: as they stand there.
    order: Option<[u8; N_COSTS]>,
}

impl CandidateSort {
    /// Returns the order that begins with some costs, by their index in [`CANDIDATE_COSTS`]; the others follow as they stand there. So
    /// nobody leaves where there is room, whatever comes first.
    pub(crate) fn beginning_with(first: &[usize]) -> Self {
        let others = (0..N_COSTS).filter(|idx| !first.contains(idx));
        let mut order = [0; N_COSTS];
        let mut is_default = true;
        for (at, (place, idx)) in order.iter_mut().zip(first.iter().copied().chain(others)).enumerate() {
            *place = u8::try_from(idx).unwrap_or(0);
            is_default &= at == idx;
        }
        Self { order: Some(order).filter(|_| !is_default) }
    }

    /// Returns what is compared of a place.
    #[inline]
    pub fn key(&self, cost: PlaceCost) -> CandidateKey {
        match &self.order {
            None => CandidateKey(cost.0),
            Some(order) => CandidateKey(order.map(|idx| cost.0.get(usize::from(idx)).copied().unwrap_or(0))),
        }
    }

    /// Returns the names of the costs in their order.
    pub fn names(&self) -> [&'static str; N_COSTS] {
        let mut names = CANDIDATE_COSTS.map(|entry| entry.name);
        if let Some(order) = &self.order {
            names = order.map(|idx| CANDIDATE_COSTS.get(usize::from(idx)).map_or("", |entry| entry.name));
        }
        names
    }
}
