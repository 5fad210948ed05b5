//! `godel yarn`: queues of the CapacityScheduler, against a whole control plane.

use crate::godel::{Up, exit_code, run};

const SCHEDULER: &str = r#"<?xml version="1.0"?>
<configuration>
  <property><name>yarn.scheduler.capacity.resource-calculator</name>
    <value>org.apache.hadoop.yarn.util.resource.DominantResourceCalculator</value></property>
  <property><name>yarn.scheduler.capacity.root.queues</name><value>prod,dev</value></property>
  <property><name>yarn.scheduler.capacity.root.prod.capacity</name><value>75</value></property>
  <property><name>yarn.scheduler.capacity.root.prod.acl_submit_applications</name><value>alice etl</value></property>
  <property><name>yarn.scheduler.capacity.root.dev.capacity</name><value>25</value></property>
  <property><name>yarn.scheduler.capacity.root.dev.maximum-capacity</name><value>50</value></property>
  <property><name>yarn.scheduler.capacity.root.dev.state</name><value>STOPPED</value></property>
</configuration>
"#;
const SITE: &str = r#"<configuration>
  <property><name>yarn.acl.enable</name><value>true</value></property>
  <property><name>yarn.nodemanager.local-dirs</name><value>/data/1</value></property>
</configuration>
"#;

#[test]
fn queues_of_yarn_are_imported() {
    let up = Up::start(&["--memory", "--simulate", "4x cpu=4,memory=8Gi"]);
    let godel = up.client();
    let conf = up.dir().join("conf");
    std::fs::create_dir(&conf).unwrap();
    std::fs::write(conf.join("capacity-scheduler.xml"), SCHEDULER).unwrap();
    std::fs::write(conf.join("yarn-site.xml"), SITE).unwrap();
    let conf = conf.to_str().unwrap();
    godel.until(&["status"], |status| status["dispatcher"]["capacity"]["cpu"] == 16_000);

    let findings = godel.json(&["yarn", "preflight", "--conf", conf]);
    let outcome = |name: &str| {
        let found = findings.as_array().unwrap().iter().find(|finding| finding["property"] == name);
        found.unwrap_or_else(|| panic!("{name}: {findings}"))["outcome"].as_str().unwrap().to_owned()
    };
    assert_eq!(outcome("yarn.scheduler.capacity.root.queues"), "mapped");
    assert_eq!(outcome("yarn.scheduler.capacity.root.prod.capacity"), "approximated");
    assert_eq!(outcome("yarn.scheduler.capacity.root.dev.state"), "unsupported");
    assert_eq!(outcome("yarn.nodemanager.local-dirs"), "unsupported");
    assert_eq!(godel.json(&["queue", "list"]).as_array().unwrap().len(), 1, "nothing was changed");

    // What is printed is what is imported.
    let file = godel.ok(&["yarn", "import-queues", "--conf", conf, "--dry-run"]);
    let said = godel.ok(&["yarn", "import-queues", "--conf", conf]);
    assert!(said.contains("queue prod created at revision") && said.contains("queue dev created"), "{said}");
    let path = up.dir().join("queues.yaml");
    std::fs::write(&path, &file).unwrap();
    let again = godel.ok(&["apply", "-f", path.to_str().unwrap()]);
    assert_eq!(again.matches(" unchanged at revision ").count(), 2, "{file}{again}");
    let prod = godel.json(&["queue", "describe", "prod"]);
    assert_eq!((&prod["min"]["cpu"], &prod["min"]["memory"]), (&12_000.into(), &(24u64 << 30).into()));
    assert_eq!((&prod["weight"], &prod["policy"]), (&75.into(), &"fifo".into()));
    let dev = godel.json(&["queue", "describe", "dev"]);
    assert_eq!((&dev["min"]["cpu"], &dev["max"]["cpu"]), (&4_000.into(), &8_000.into()));

    // `root` has no list of its own here, which lets everybody in.
    assert_eq!(prod["submit_owners"], serde_json::json!([]));
    let below = ["yarn", "import-queues", "--conf", conf, "--under", "yarn", "--total", "cpu=8,memory=8Gi"];
    let said = godel.ok(&below);
    assert_eq!(said.matches(" created at revision ").count(), 3, "{said}");
    assert_eq!(godel.json(&["queue", "describe", "yarn.prod"])["min"]["cpu"], 6_000);
    godel.audit();
    up.stop();
}

#[test]
fn what_cannot_be_imported_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let half = SCHEDULER.replace("<value>75</value>", "<value>70</value>");
    let fails = |words: &[&str], code, part: &str| {
        let output = run(&[&["yarn"], words].concat(), &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(exit_code(&output) == code && said.contains(part), "{words:?}: {said}");
    };
    let total = ["--total", "cpu=8,memory=8Gi"];
    let half = file("half.xml", &half);
    for verb in ["preflight", "import-queues"] {
        for (path, part) in [
            (half.clone(), "root.queues: the capacities of its queues are 95 per cent together, not 100"),
            (file("no.xml", "<allocations/>"), "is no configuration file of Hadoop"),
            (dir.path().to_str().unwrap().to_owned(), "has no capacity-scheduler.xml"),
            (dir.path().join("none.xml").to_str().unwrap().to_owned(), "none.xml cannot be read"),
        ] {
            fails(&[&[verb, "--conf", &path], &total[..]].concat(), 2, part);
        }
    }
    let whole = file("whole.xml", SCHEDULER);
    fails(&["preflight", "--conf", &whole, "--total", "cpu"], 2, "`cpu` is not RESOURCE=QUANTITY");
    fails(
        &["preflight", "--conf", &whole, "--total", "cpu=many"],
        2,
        "--total cpu: `many` is no CPU quantity",
    );
    // Without a total the cluster is asked.
    let nobody = ["--address", "http://127.0.0.1:1"];
    let output = run(&[&nobody[..], &["yarn", "preflight", "--conf", &whole]].concat(), &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("`--total cpu=100,memory=400Gi` says"), "{said}");
}
