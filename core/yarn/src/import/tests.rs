//! Whole configurations, and what becomes of them.

use godel_domain::{queue_spec::QueuePolicy, record_change::Users};
use godel_queueing::{
    QueueTree,
    check::{self, QueueChange},
};
use proptest::prelude::*;

use super::*;
use crate::site::preflight;

fn configuration(properties: &[(&str, &str)]) -> HadoopConfiguration {
    let property = |(name, value): &(&str, &str)| {
        let name = name.strip_prefix("root").map_or((*name).to_owned(), |rest| format!("{PREFIX}root{rest}"));
        format!("<property><name>{name}</name><value>{value}</value></property>")
    };
    let text =
        format!("<configuration>{}</configuration>", properties.iter().map(property).collect::<String>());
    let mut configuration = HadoopConfiguration::default();
    configuration.read("capacity-scheduler.xml", &text).unwrap();
    configuration
}

fn total() -> BTreeMap<String, i64> {
    [("cpu".to_owned(), 100_000), ("memory".to_owned(), 1_000 << 30)].into()
}

fn import(properties: &[(&str, &str)], under: Option<&str>) -> QueueImport {
    let options = ImportOptions { under: under.map(str::to_owned), total: total() };
    preflight(&configuration(properties), &options)
}

/// `name min max weight policy owners` of every queue.
fn shown(import: &QueueImport) -> Vec<String> {
    assert_eq!(import.mistakes, [""; 0]);
    let queue = |spec: &QueueSpec| {
        let owners = spec.submit_owners.join("+");
        format!(
            "{} [{}] [{}] {} {} {owners}",
            spec.name,
            show(&spec.min),
            show(&spec.max),
            spec.weight,
            spec.policy
        )
    };
    import.queues.iter().map(|spec| queue(spec).trim_end().to_owned()).collect()
}

fn finding<'a>(import: &'a QueueImport, name: &str) -> (Fidelity, &'a str) {
    let name = name.strip_prefix("root").map_or(name.to_owned(), |rest| format!("{PREFIX}root{rest}"));
    let found = import.findings.iter().find(|finding| finding.property == name);
    let found = found.unwrap_or_else(|| panic!("no finding of {name}: {:#?}", import.findings));
    (found.fidelity, &found.effect)
}

const CALCULATOR: (&str, &str) = (
    "yarn.scheduler.capacity.resource-calculator",
    "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator",
);

#[test]
fn percentages_become_amounts_of_what_is_above() {
    let tree = [
        CALCULATOR,
        ("root.queues", "prod, dev"),
        ("root.prod.capacity", "70"),
        ("root.prod.queues", "etl,ads"),
        ("root.prod.etl.capacity", "50"),
        ("root.prod.etl.maximum-capacity", "80"),
        ("root.prod.ads.capacity", "50"),
        ("root.dev.capacity", "30"),
        ("root.dev.maximum-capacity", "50"),
    ];
    let found = import(&tree, None);
    assert_eq!(
        shown(&found),
        [
            "prod [cpu 70, memory 700Gi] [] 7 priority",
            "dev [cpu 30, memory 300Gi] [cpu 50, memory 500Gi] 3 fifo",
            "prod.etl [cpu 35, memory 350Gi] [cpu 80, memory 800Gi] 5 fifo",
            "prod.ads [cpu 35, memory 350Gi] [] 5 fifo",
        ]
    );
    let (fidelity, effect) = finding(&found, "root.dev.capacity");
    assert_eq!(fidelity, Fidelity::Approximated);
    assert!(effect.starts_with("guarantee cpu 30, memory 300Gi, weight 3; "), "{effect}");
    assert_eq!(finding(&found, "root.prod.queues"), (Fidelity::Mapped, "etl is prod.etl, ads is prod.ads"));

    let found = import(&tree[1..], Some("yarn"));
    let first: Vec<String> = shown(&found).into_iter().take(3).collect();
    assert_eq!(
        first,
        [
            "yarn [memory 1000Gi] [] 1 priority",
            "yarn.prod [memory 700Gi] [] 7 priority",
            "yarn.dev [memory 300Gi] [memory 500Gi] 3 fifo",
        ]
    );
    let (fidelity, effect) = finding(&found, "yarn.scheduler.capacity.resource-calculator");
    assert!(fidelity == Fidelity::Mapped && effect.contains("memory only"), "{effect}");
}

#[test]
fn weights_and_amounts_are_kept() {
    let found = import(
        &[
            ("root.queues", "a,b,c"),
            ("root.a.capacity", "1w"),
            ("root.b.capacity", "2.5w"),
            ("root.c.capacity", "0w"),
        ],
        None,
    );
    assert_eq!(
        shown(&found),
        [
            format!("a [memory {}] [] 10 fifo", part_of_memory(1_000_000, 3_500_000)),
            format!("b [memory {}] [] 25 fifo", part_of_memory(2_500_000, 3_500_000)),
            "c [] [] 1 fifo".to_owned(),
        ]
    );
    let absolute = [
        CALCULATOR,
        ("root.queues", "a,b"),
        ("root.a.capacity", "[memory=10240,vcores=10]"),
        ("root.a.maximum-capacity", "[memory=20480,vcores=20]"),
        ("root.b.capacity", "[memory=30720,vcores=5,yarn.io/gpu=2]"),
    ];
    let found = import(&absolute, None);
    assert_eq!(
        shown(&found),
        [
            "a [cpu 10, memory 10Gi] [cpu 20, memory 20Gi] 1024 fifo",
            "b [cpu 5, gpu 2, memory 30Gi] [] 3072 fifo"
        ]
    );
    assert_eq!(finding(&found, "root.a.maximum-capacity"), (Fidelity::Mapped, "maximum cpu 20, memory 20Gi"));
}

/// A part of all memory as it is shown.
fn part_of_memory(part: i128, whole: i128) -> String {
    let amount = i64::try_from((1_000i128 << 30) * part / whole).unwrap();
    godel_base::quantity::show_queued("memory", amount)
}

#[test]
fn orders_and_users_become_policies() {
    let found = import(
        &[
            ("yarn.cluster.max-application-priority", "10"),
            ("root.queues", "a,b,c"),
            ("root.a.capacity", "40"),
            ("root.a.ordering-policy", "fifo"),
            ("root.b.capacity", "40"),
            ("root.b.ordering-policy", "fair"),
            ("root.b.user-settings.ann.weight", "3"),
            ("root.b.user-settings.bob.weight", "0.5"),
            ("root.c.capacity", "20"),
            ("root.c.minimum-user-limit-percent", "25"),
            ("root.c.user-limit-factor", "-1"),
            ("root.a.user-settings.ann.weight", "3"),
        ],
        None,
    );
    let policies: Vec<QueuePolicy> = found.queues.iter().map(|spec| spec.policy).collect();
    assert_eq!(policies, [QueuePolicy::Priority, QueuePolicy::FairShare, QueuePolicy::FairShare]);
    assert_eq!(found.queues[1].owner_weights, [("ann".to_owned(), 3)].into());
    let both = found.clone().with_simple_users();
    let expected = [("ann".to_owned(), 3), ("yarn-simple:ann".to_owned(), 3)];
    assert_eq!(both.queues[1].owner_weights, expected.into());
    assert_eq!(finding(&found, "root.a.ordering-policy").0, Fidelity::Approximated);
    assert_eq!(finding(&found, "root.b.user-settings.ann.weight").0, Fidelity::Approximated);
    assert_eq!(finding(&found, "root.b.user-settings.bob.weight").0, Fidelity::Unsupported);
    assert_eq!(finding(&found, "root.a.user-settings.ann.weight").0, Fidelity::Unsupported);
    assert_eq!(finding(&found, "root.c.user-limit-factor").0, Fidelity::Mapped);
    assert_eq!(finding(&found, "root.b.user-limit-factor").0, Fidelity::Approximated);
}

#[test]
fn limits_of_users_and_of_masters_become_limits_of_queues() {
    let found = import(
        &[
            CALCULATOR,
            ("yarn.scheduler.capacity.maximum-am-resource-percent", "0.25"),
            ("root.queues", "a,b,c,d"),
            ("root.a.capacity", "40"),
            ("root.a.user-limit-factor", "0.5"),
            ("root.a.maximum-capacity", "60"),
            ("root.a.maximum-am-resource-percent", "0.0001"),
            ("root.b.capacity", "40"),
            ("root.b.user-limit-factor", "2"),
            ("root.c.capacity", "20"),
            ("root.c.user-limit-factor", "-1"),
            ("root.c.maximum-am-resource-percent", "many"),
            ("root.d.capacity", "0"),
        ],
        None,
    );
    let limits: Vec<String> = found
        .queues
        .iter()
        .map(|spec| {
            format!(
                "{} [{}] [{}] {}",
                spec.name,
                show(&spec.max_per_owner),
                show(&spec.max),
                spec.am_share_milli
            )
        })
        .collect();
    assert_eq!(
        limits,
        [
            "a [cpu 20, memory 200Gi] [cpu 60, memory 600Gi] 1",
            "b [cpu 80, memory 800Gi] [cpu 100, memory 1000Gi] 250",
            "c [] [] 0",
            "d [] [cpu 100, memory 1000Gi] 250",
        ]
    );
    for (name, fidelity, part) in [
        ("root.a.user-limit-factor", Fidelity::Approximated, "max_per_owner cpu 20, memory 200Gi"),
        ("root.c.user-limit-factor", Fidelity::Mapped, "all that the queue may"),
        ("root.d.user-limit-factor", Fidelity::Unsupported, "this one has none"),
        (
            "root.a.maximum-am-resource-percent",
            Fidelity::Approximated,
            "am_share 0.001 of the maximum cpu 60",
        ),
        ("root.c.maximum-am-resource-percent", Fidelity::Unsupported, "`many` is no share"),
        (
            "yarn.scheduler.capacity.maximum-am-resource-percent",
            Fidelity::Approximated,
            "am_share of every queue",
        ),
    ] {
        let (found, effect) = finding(&found, name);
        assert!(found == fidelity && effect.contains(part), "{name}: {found:?} {effect}");
    }
}

#[test]
fn rules_for_queues_are_the_adapters() {
    let name = "yarn.scheduler.capacity.queue-mappings";
    let tree = [("root.queues", "a"), ("root.a.capacity", "100")];
    for (rules, fidelity, part) in [
        ("u:ann:a,g:ops:%user", Fidelity::Mapped, "`yarn.conf_dir`"),
        ("ann:a", Fidelity::Unsupported, "`ann:a` is no rule"),
    ] {
        let found = import(&[&tree[..], &[(name, rules)]].concat(), None);
        let (found, effect) = finding(&found, name);
        assert!(found == fidelity && effect.contains(part), "{rules}: {effect}");
    }
    let json = "yarn.scheduler.capacity.mapping-rule-json";
    let found = import(&[&tree[..], &[(json, "{}")]].concat(), None);
    assert_eq!(finding(&found, json).0, Fidelity::Unsupported);
}

#[test]
fn whoever_may_submit_in_yarn_may_in_godel() {
    let tree = [
        ("yarn.acl.enable", "true"),
        ("root.acl_submit_applications", " "),
        ("root.acl_administer_queue", "admin"),
        ("root.queues", "a,b,c,d"),
        ("root.a.capacity", "25"),
        ("root.a.acl_submit_applications", "alice,bob ops"),
        ("root.b.capacity", "25"),
        ("root.b.acl_submit_applications", "*"),
        ("root.c.capacity", "25"),
        ("root.d.capacity", "25"),
        ("root.d.queues", "e"),
        ("root.d.acl_submit_applications", "carol"),
        ("root.d.e.capacity", "100"),
    ];
    let found = import(&tree, None);
    let owners: Vec<Vec<String>> = found.queues.iter().map(|spec| spec.submit_owners.clone()).collect();
    assert_eq!(owners, [&["admin", "alice", "bob"][..], &[], &["admin"], &[], &["admin", "carol"]]);
    let (fidelity, effect) = finding(&found, "root.a.acl_submit_applications");
    assert!(fidelity == Fidelity::Unsupported && effect.contains("members of ops"), "{effect}");
    let both = found.clone().with_simple_users();
    let expected = ["admin", "alice", "bob", "yarn-simple:admin", "yarn-simple:alice", "yarn-simple:bob"];
    assert_eq!(both.queues[0].submit_owners, expected);
    assert!(both.queues[1].submit_owners.is_empty(), "everybody may");
    // Nobody at all.
    let mut closed = tree;
    closed[2] = ("root.acl_administer_queue", " ");
    assert_eq!(import(&closed, None).with_simple_users().queues[2].submit_owners, [NOBODY]);
    // Without the switch nobody is asked, and `root` lets everybody where it says nothing.
    assert!(import(&tree[1..], None).queues.iter().all(|spec| spec.submit_owners.is_empty()));
    let open = [&tree[..1], &tree[3..]].concat();
    let effect = import(&open, None);
    let (fidelity, effect) = finding(&effect, "root.a.acl_submit_applications");
    assert!(fidelity == Fidelity::Mapped && effect.contains("everyone may submit"), "{effect}");
    assert!(import(&open, None).queues.iter().all(|spec| spec.submit_owners.is_empty()));
}

#[test]
fn every_property_is_found_and_judged() {
    let found = import(
        &[
            ("root.queues", "Prod_A,default"),
            ("root.Prod_A.capacity", "60"),
            ("root.Prod_A.state", "STOPPED"),
            ("root.Prod_A.maximum-am-resource-percent", "0.5"),
            ("root.Prod_A.accessible-node-labels.gpu.capacity", "50"),
            ("root.Prod_A.colour", "blue"),
            ("root.default.capacity", "40"),
            ("root.old.capacity", "10"),
            ("root.default.older.capacity", "10"),
            ("yarn.scheduler.capacity.node-locality-delay", "40"),
            ("yarn.scheduler.capacity.colour", "blue"),
            ("yarn.resourcemanager.scheduler.class", "x.FairScheduler"),
            ("yarn.scheduler.minimum-allocation-mb", "1024"),
            ("yarn.nodemanager.resource.memory-mb", "8192"),
            ("yarn.nodemanager.local-dirs", "/tmp"),
            ("yarn.acl.enable", "false"),
            ("yarn.unheard-of", "1"),
            ("fs.defaultFS", "file:///"),
        ],
        None,
    );
    assert_eq!(found.queues[0].name, "prod-a");
    assert_eq!(found.mistakes, [""; 0]);
    for (name, fidelity, part) in [
        ("root.queues", Fidelity::Approximated, "Prod_A is prod-a, default is default"),
        ("root.Prod_A.state", Fidelity::Unsupported, "`godel admin pause queue/prod-a`"),
        (
            "root.Prod_A.maximum-am-resource-percent",
            Fidelity::Approximated,
            "am_share 0.5 of the maximum memory 1000Gi",
        ),
        ("yarn.scheduler.capacity.maximum-am-resource-percent", Fidelity::Unsupported, "may fill a queue"),
        ("root.Prod_A.user-limit-factor", Fidelity::Approximated, "max_per_owner memory 600Gi"),
        ("root.Prod_A.accessible-node-labels.gpu.capacity", Fidelity::Unsupported, "nodes with a label"),
        ("root.Prod_A.colour", Fidelity::Unsupported, "does not know"),
        ("root.old.capacity", Fidelity::Unsupported, "no `queues` names this queue"),
        ("root.default.older.capacity", Fidelity::Unsupported, "no `queues` names this queue"),
        ("yarn.scheduler.capacity.node-locality-delay", Fidelity::Unsupported, "does not wait"),
        ("yarn.scheduler.capacity.colour", Fidelity::Unsupported, "does not know"),
        ("yarn.resourcemanager.scheduler.class", Fidelity::Unsupported, "no other scheduler"),
        ("yarn.scheduler.minimum-allocation-mb", Fidelity::Unsupported, "not rounded up"),
        ("yarn.nodemanager.resource.memory-mb", Fidelity::Approximated, "`agent.reserve_memory`"),
        ("yarn.nodemanager.local-dirs", Fidelity::Unsupported, "godel's agent"),
        ("yarn.acl.enable", Fidelity::Mapped, "nobody is asked"),
        ("yarn.unheard-of", Fidelity::Unsupported, "does not know"),
    ] {
        let (found, effect) = finding(&found, name);
        assert!(found == fidelity && effect.contains(part), "{name}: {found:?} {effect}");
    }
    // All of YARN's, and two defaults with an effect for the queues, two for the scheduler.
    assert_eq!(found.findings.len(), 17 + 4);
}

#[test]
fn what_yarn_or_godel_would_refuse_is_told() {
    let deep_tree: Vec<(String, String)> =
        (0..9).map(|n| (format!("root{}.queues", ".a".repeat(n)), "a".to_owned())).collect();
    let deep_tree: Vec<(&str, &str)> =
        deep_tree.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let capacities: Vec<String> = (1..=9).map(|n| format!("root{}.capacity", ".a".repeat(n))).collect();
    let deep_tree =
        [&deep_tree[..], &capacities.iter().map(|n| (n.as_str(), "100")).collect::<Vec<_>>()].concat();
    let two = ("root.queues", "a,b");
    for (properties, part) in [
        (&[][..], "root.queues names no queues"),
        (&[two, ("root.a.capacity", "50")], "are 50 per cent together, not 100"),
        (&[two, ("root.a.capacity", "50"), ("root.b.capacity", "1w")], "YARN takes one kind"),
        (
            &[two, ("root.a.capacity", "x"), ("root.b.capacity", "100")],
            "root.a.capacity: `x` is no percentage",
        ),
        (
            &[two, ("root.a.capacity", "60"), ("root.b.capacity", "40"), ("root.a.maximum-capacity", "50")],
            "root.a.capacity: it is above its maximum-capacity",
        ),
        (
            &[("root.queues", "a,A"), ("root.a.capacity", "50"), ("root.A.capacity", "50")],
            "`A` is called `a` in godel",
        ),
        (&[("root.queues", "_"), ("root._.capacity", "100")], "would be called ``"),
        (
            &[
                ("root.queues", "default"),
                ("root.default.capacity", "100"),
                ("root.default.queues", "a"),
                ("root.default.a.capacity", "100"),
            ],
            "`--under yarn`",
        ),
        (
            &[
                ("root.queues", "a"),
                ("root.a.capacity", "[memory=1024]"),
                ("root.a.queues", "b"),
                ("root.a.b.capacity", "[memory=2048]"),
            ],
            "root.a.queues: the queues below it are given more than its memory 1Gi",
        ),
        (
            &[("root.queues", "a"), ("root.a.capacity", "100"), ("root.a.maximum-capacity", "2w")],
            "a maximum is no weight",
        ),
        (
            &[("root.queues", "a"), ("root.a.capacity", "100"), ("root.capacity", "90")],
            "the capacity of root is 100",
        ),
        (&deep_tree, "at most 8 levels"),
    ] {
        let found = import(properties, None);
        assert!(found.queues.is_empty(), "{properties:?}");
        assert!(found.mistakes.iter().any(|mistake| mistake.contains(part)), "{part}: {:?}", found.mistakes);
    }
    // Nothing for anybody is what YARN takes if it is asked to.
    let nothing = [two, ("root.allow-zero-capacity-sum", "true")];
    assert_eq!(import(&nothing, None).queues.len(), 2);
}

/// What queues share what is above them by, and which maximum they have.
fn siblings() -> impl Strategy<Value = Vec<(u32, u32)>> {
    prop::collection::vec((0u32..1_000, 0u32..=100), 1..5)
}

proptest! {
    /// Whatever a configuration says that is imported, godel's own check takes.
    #[test]
    fn what_is_imported_is_accepted(
        top in siblings(),
        below in siblings(),
        is_weighed: bool,
        under in prop::option::of(Just("yarn")),
        memory in 0i64..1 << 50,
    ) {
        let mut text = String::from("<configuration>");
        let mut put = |name: &str, value: &str| {
            text += &format!("<property><name>{PREFIX}{name}</name><value>{value}</value></property>");
        };
        let mut tree = |path: &str, siblings: &[(u32, u32)]| {
            let names: Vec<String> = (0..siblings.len()).map(|idx| format!("q{idx}")).collect();
            put(&format!("{path}.queues"), &names.join(","));
            let sum: u32 = siblings.iter().map(|(part, _)| part).sum();
            for (name, (part, max)) in names.iter().zip(siblings) {
                let percent = f64::from(*part) * 100.0 / f64::from(sum.max(1));
                let capacity = if is_weighed { format!("{part}w") } else { format!("{percent:.4}") };
                put(&format!("{path}.{name}.capacity"), &capacity);
                put(&format!("{path}.{name}.maximum-capacity"), &max.to_string());
            }
        };
        tree("root", &top);
        tree("root.q0", &below);
        text += "</configuration>";
        let mut configuration = HadoopConfiguration::default();
        configuration.read("generated", &text).unwrap();
        let options = ImportOptions { under: under.map(str::to_owned), total: [("memory".to_owned(), memory)].into() };
        let import = import_queues(&configuration, &options);
        let changes: Vec<QueueChange> =
            import.queues.iter().map(|spec| QueueChange::Create(spec.clone().into())).collect();
        let checked = check::queues(&QueueTree::default(), &changes, &|_| Users::default());
        prop_assert!(checked.is_ok(), "{checked:?} {:#?}", import.queues);
        prop_assert_eq!(import.queues.is_empty(), !import.mistakes.is_empty());
    }
}
