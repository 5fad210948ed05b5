//! What `nft` and `tc` are told, and what they say.

use super::*;

fn told(key: Key, rate: Option<i64>, is_best_effort: bool) -> Told {
    Told { group: GroupRecord::default(), minor: 0x10, key, rate, is_best_effort }
}

fn eth0() -> Interface {
    Interface { name: "eth0".to_owned(), rate: 10_000_000_000 }
}

#[test]
fn a_queue_has_classes_for_the_rest_and_for_best_effort() {
    let text = queue(&eth0(), 0x6712, false, 8_000_000_000);
    let expected = "\
        qdisc add dev eth0 root handle 6712: htb default ffff\n\
        class add dev eth0 parent 6712: classid 6712:fffe htb rate 10000000000bit quantum 60000\n\
        class add dev eth0 parent 6712:fffe classid 6712:ffff htb rate 2000000000bit ceil 10000000000bit prio 1 quantum 60000\n\
        class add dev eth0 parent 6712:fffe classid 6712:fffd htb rate 100000000bit ceil 10000000000bit prio 7 quantum 60000\n";
    assert_eq!(text, expected);
    let again = queue(&eth0(), 0x6712, true, 20_000_000_000);
    assert!(again.starts_with("qdisc del dev eth0 root\nqdisc add dev eth0 root"), "{again}");
    assert!(again.contains("classid 6712:ffff htb rate 100000000bit ceil"), "all is offered: {again}");
}

#[test]
fn only_who_asks_has_a_class_of_its_own() {
    let key = || Key::Class(PathBuf::from("/c"));
    let lines = |rate, is_best_effort| class_lines(&[eth0()], 0x6712, &told(key(), rate, is_best_effort));
    let line = |rate: i64| {
        format!(
            "class replace dev eth0 parent 6712:fffe classid 6712:10 htb rate {rate}bit ceil {rate}bit prio 0 quantum 60000\n"
        )
    };
    assert_eq!(lines(Some(5_000_000), false), line(5_000_000));
    assert_eq!(lines(Some(1), false), line(RATE_MIN));
    assert_eq!(lines(Some(i64::MAX), false), line(10_000_000_000));
    assert_eq!((lines(None, false), lines(Some(5), true)), (String::new(), String::new()));
}

#[test]
fn a_table_finds_packets_by_class_and_by_path() {
    let text = table("godel-t", &BTreeSet::from([Form::Class, Form::Level(3)]));
    let expected = "\
        add table inet godel-t\n\
        delete table inet godel-t\n\
        add table inet godel-t\n\
        add map inet godel-t sent-class { typeof meta cgroup : verdict; }\n\
        add map inet godel-t received-class { typeof meta cgroup : verdict; }\n\
        add map inet godel-t sent-path { type cgroupsv2 : verdict; }\n\
        add map inet godel-t received-path { type cgroupsv2 : verdict; }\n\
        add chain inet godel-t output { type filter hook output priority 0; policy accept; }\n\
        add rule inet godel-t output meta cgroup vmap @sent-class\n\
        add rule inet godel-t output socket cgroupv2 level 3 vmap @sent-path\n\
        add chain inet godel-t input { type filter hook input priority 0; policy accept; }\n\
        add rule inet godel-t input meta cgroup vmap @received-class\n\
        add rule inet godel-t input socket cgroupv2 level 3 vmap @received-path\n";
    assert_eq!(text, expected);
    let path = Key::Path { path: "own/godel-x/7-0-1.0".to_owned(), level: 3 };
    let mark = Mark { id: 0x6712_0010, class: Some((0x6712, 0x10)) };
    let text = chains("godel-t", "7-0-1.0", &told(path, Some(5), false), mark, 3, 4);
    let expected = "\
        add counter inet godel-t s-7-0-1.0 { packets 0 bytes 4 }\n\
        add chain inet godel-t sent-7-0-1.0\n\
        add rule inet godel-t sent-7-0-1.0 counter name s-7-0-1.0 meta priority set 6712:10\n\
        add element inet godel-t sent-path { \"own/godel-x/7-0-1.0\" : jump sent-7-0-1.0 }\n\
        add counter inet godel-t r-7-0-1.0 { packets 0 bytes 3 }\n\
        add chain inet godel-t received-7-0-1.0\n\
        add rule inet godel-t received-7-0-1.0 counter name r-7-0-1.0\n\
        add element inet godel-t received-path { \"own/godel-x/7-0-1.0\" : jump received-7-0-1.0 }\n";
    assert_eq!(text, expected);
    let class = told(Key::Class(PathBuf::from("/c")), None, false);
    let text = chains("godel-t", "7-0-1.0", &class, Mark { class: None, ..mark }, 0, 0);
    assert!(text.contains("sent-class { 0x67120010 : jump sent-7-0-1.0 }"), "{text}");
    assert!(!text.contains("priority"), "it goes with the rest: {text}");
}

#[test]
fn best_effort_work_shares_a_class() {
    let class = |rate, is_best_effort| told(Key::Class(PathBuf::new()), rate, is_best_effort).class();
    assert_eq!(class(Some(5), true), Some(BEST_EFFORT));
    assert_eq!(class(None, true), Some(BEST_EFFORT));
    assert_eq!((class(Some(5), false), class(None, false)), (Some(0x10), None));
}

#[test]
fn what_the_commands_list_is_read() {
    let listed = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
        {"counter": {"family": "inet", "name": "s-17-0-3.2", "packets": 1, "bytes": 77}},
        {"counter": {"family": "inet", "name": "r-17-0-3.2", "packets": 0, "bytes": 5}},
        {"counter": {"family": "inet", "name": "what", "bytes": 9}},
        {"table": {"family": "inet", "name": "godel-1"}},
        {"table": {"family": "inet", "name": "godel-77"}},
        {"table": {"family": "inet", "name": "godel-3f2a"}},
        {"table": {"family": "inet", "name": "filter"}}]}"#;
    assert_eq!(counters(listed), BTreeMap::from([("17-0-3.2".to_owned(), (5, 77))]));
    assert_eq!(counters("nonsense"), BTreeMap::new());
    let machine = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(machine.path().join("proc/77")).unwrap();
    let tree = Tree::new(machine.path());
    assert_eq!(left_over(&tree, listed), ["godel-1"], "the agents of the others live, or keep their name");
    for (shown, handle) in [
        ("qdisc noqueue 0: root refcnt 2\n", None),
        ("qdisc mq 0: root\nqdisc fq_codel 0: parent :1\n", None),
        ("qdisc htb 6712: root refcnt 3 r2q 10\n", Some("6712:")),
        ("", None),
    ] {
        assert_eq!(root_handle(shown), handle, "{shown}");
    }
}

#[test]
fn interfaces_are_those_that_are_hardware_and_up() {
    let machine = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = machine.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    for (name, is_hardware, state) in [("eth0", true, "up"), ("eth1", true, "down"), ("br0", false, "up")] {
        put(&format!("sys/class/net/{name}/operstate"), state);
        if is_hardware {
            put(&format!("sys/class/net/{name}/device/vendor"), "1");
        }
    }
    assert_eq!(hardware(&Tree::new(machine.path())), ["eth0"]);
}
