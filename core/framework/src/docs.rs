//! The reference of plugins and profiles, generated for `docs/plugins.md`.

use std::fmt::Write as _;

use serde_json::Value;

use crate::{
    args::ArgField,
    point::RestsOn,
    profile::{BUILT_IN, WEIGHT_MAX},
    registry::{
        CANDIDATE_COSTS, FILTERS, GROUPERS, LOCATORS, PreemptionEntry, RECOMMENDERS, RESERVES, SCORES,
        VICTIM_RULES,
    },
};

/// Returns every plugin with its points, its arguments and the reasons it gives, as Markdown.
pub fn render_plugins() -> String {
    let mut out = "## Filters\n\n\
        A filter says which nodes cannot take a replica. In the reasons of a waiting unit it appears under its name. A refused \
        node is counted for the first filter of this table that refuses it. The binder runs all filters once more before it \
        binds; its rejections have the reasons in the last column. Filters have no arguments.\n\n\
        | filter | passes if | the binder looks again | rejection reasons |\n|---|---|---|---|\n"
        .to_owned();
    for filter in FILTERS {
        let again = match filter.rests_on() {
            RestsOn::Room => "always, when it takes the room",
            RestsOn::Records => "if the node has changed since the decision",
            RestsOn::Anything => "always",
        };
        let reasons: Vec<String> =
            filter.reasons().iter().map(|reason| format!("`{}`", reason.name())).collect();
        // Writing to a String cannot fail.
        let _ =
            writeln!(out, "| `{}` | {} | {again} | {} |", filter.name(), filter.doc(), reasons.join(", "));
    }
    out += "\n## Locators\n\n\
        A locator knows where the only nodes are that can pass a filter, so that a scan does not look at the others. Every \
        profile has all locators.\n\n| locator | does |\n|---|---|\n";
    for locator in LOCATORS {
        let _ = writeln!(out, "| `{}` | {} |", locator.name(), locator.doc());
    }
    out += "\n## Recommenders\n\n\
        A recommender names nodes that come before any that a scan finds: a replica takes the first of them that passes the filters \
        and has room for it, whatever the scores say. A recommendation refuses nothing. Every profile has all recommenders, and they \
        are asked in this order.\n\n| recommender | does |\n|---|---|\n";
    for recommender in RECOMMENDERS {
        let _ = writeln!(out, "| `{}` | {} |", recommender.name(), recommender.doc());
    }
    out += &groupers();
    let _ = write!(
        out,
        "\n## Scores\n\n\
         A score rates a node that passed all filters from 0 to 100 points. A profile adds up the points of its scores, each \
         times its weight (1 to {WEIGHT_MAX}), and the node with the highest sum is taken. Ties are broken by a seeded \
         hash.\n\n| score | does | arguments |\n|---|---|---|\n"
    );
    for score in &SCORES {
        let _ = writeln!(
            out,
            "| `{}` | {} | {} |",
            score.name,
            score.doc,
            arguments(score.fields, &(score.defaults)())
        );
    }
    out += "\n## Reserved kinds\n\n\
        When a place is chosen for a replica, each kind of this table takes there what concerns it, and gives it back if nothing comes of \
        the decision or once the replica has ended. Schedulers do so before they send a decision, and the binder before it commits one. \
        Every profile has all of them, and they have no arguments.\n\n| kind | takes |\n|---|---|\n";
    for kind in &RESERVES {
        let _ = writeln!(out, "| `{}` | {} |", kind.name, kind.doc);
    }
    out += "\n## Victim rules\n\n\
        A victim rule says which running units may leave for one of higher rank; [preemption.md](preemption.md) describes the search. \
        They are asked in this order. The binder asks them once more before it evicts anyone, so a profile cannot leave one out: \
        `victim_rules` may list them by name. They have no arguments.\n\n| victim rule | a running unit may leave if |\n|---|---|\n";
    out += &rows(&VICTIM_RULES);
    out += "\n## Candidate costs\n\n\
        A candidate cost measures a place for which running units leave; the place with the least cost is taken, among nodes and among \
        domains. The costs are compared in this order. A profile changes it with `candidate_sort: [least-lost-work, fewest-victims]`: what \
        it names comes first, and the others follow as they stand here, so that nobody is evicted where there is room. They have no \
        arguments.\n\n| candidate cost | does |\n|---|---|\n";
    out += &rows(&CANDIDATE_COSTS);
    out
}

fn rows(entries: &[PreemptionEntry]) -> String {
    entries.iter().map(|entry| format!("| `{}` | {} |\n", entry.name, entry.doc)).collect()
}

fn groupers() -> String {
    let mut out = "\n## Groupers\n\n\
        A grouper splits the nodes into groups, level by level. The replicas of a unit that are placed together, before any of it runs, are tried in one \
        group after the other: groups without room for them are passed over, and of each level 8 at most are tried. If no group takes them, they \
        are placed without groups. Task groups with a topology of their own are placed by the same groupers. `groupers` in a profile lists them; without \
        it a profile has those that bind. Whatever the list says, they add their levels in the order of this table. What binds cannot be \
        left out, because the binder checks it: of a grouper that a profile does not list, what units require counts all the same, and \
        `groupers: []` ignores what they prefer.\n\n\
        | grouper | groups | binds | arguments |\n|---|---|---|---|\n"
        .to_owned();
    for grouper in &GROUPERS {
        let (binds, arguments) =
            (if grouper.binds { "yes" } else { "no" }, arguments(grouper.fields, &(grouper.defaults)()));
        let _ = writeln!(out, "| `{}` | {} | {binds} | {arguments} |", grouper.name, grouper.doc);
    }
    out
}

fn arguments(fields: &[ArgField], defaults: &Value) -> String {
    let one = |field: &ArgField| {
        let default = defaults.get(field.name).map(ToString::to_string).unwrap_or_default();
        format!("`{}`: {}, default `{default}`. {}", field.name, field.kind, field.doc)
    };
    let all: Vec<String> = fields.iter().map(one).collect();
    if all.is_empty() { "none".to_owned() } else { all.join("<br>") }
}

/// Returns the profiles that are there without being configured, as Markdown.
pub fn render_profiles() -> String {
    let mut out = "| profile | scores | why |\n|---|---|---|\n".to_owned();
    for profile in &BUILT_IN {
        let scores: Vec<String> =
            profile.scores.iter().map(|(name, weight)| format!("`{name}` × {weight}")).collect();
        let _ = writeln!(out, "| `{}` | {} | {} |", profile.name, scores.join(", "), profile.reason);
    }
    out
}
