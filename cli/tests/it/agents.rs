//! What `godel agent` refuses before it speaks to anybody: above all what must not make a real node of this machine.

use crate::godel::{exit_code, run};

/// Nobody listens there: an agent that went on would not end.
const NOWHERE: &str = "http://127.0.0.1:1";

fn agent(words: &[&str]) -> (i32, String) {
    let output = run(&[&["--address", NOWHERE, "agent"], words].concat(), &[]);
    (exit_code(&output), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_list_of_simulated_nodes_never_makes_a_real_one() {
    let dir = tempfile::tempdir().unwrap();
    let header = "sn,cpu_milli,memory_mib,gpu,model\n";
    for (text, expected) in [
        ("", "line 1: expected the header"),
        ("n-0,32000,262144,0,\n", "line 1: expected the header"),
        ("n-0,32000,262144,0,\nn-1,32000,262144,0,\n", "line 1: expected the header"),
        (header, "line 2: no nodes after the header"),
        ("sn,cpu_milli,memory_mib,gpu\nn-0,1,1,0\n", "line 1: expected the header"),
        ("sn,cpu_milli,memory_mib,gpu,model\nn-0,x,1,0,\n", "line 2: "),
        ("sn,cpu_milli,memory_mib,gpu,model\nN_0,1,1,0,\n", "line 2: sn: `N_0` cannot be a node's name"),
    ] {
        let file = dir.path().join("nodes.csv");
        std::fs::write(&file, text).unwrap();
        let (code, stderr) = agent(&["--nodes", file.to_str().unwrap()]);
        assert_eq!(code, 2, "{text:?}: {stderr}");
        assert!(stderr.contains(expected) && stderr.contains("nodes.csv"), "{text:?}: {stderr}");
    }
    for words in
        [["--nodes", "/nowhere.csv"], ["--nodes", ""], ["--simulate", ""], ["--simulate", "0x cpu=1"]]
    {
        let (code, stderr) = agent(&words);
        assert_eq!(code, 2, "{words:?}: {stderr}");
    }
}

#[test]
fn a_node_that_cannot_be_called_so_is_refused_at_once() {
    let (code, stderr) = agent(&["--name", "GPU-Node_01"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("`GPU-Node_01` cannot be a node's name: `G` is not allowed"), "{stderr}");
    let (code, stderr) = agent(&["--simulate", "2x cpu=1,name=GPU"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(
        stderr.contains("name: `G` is not allowed: lower-case letters, digits, `-` and `.` are"),
        "{stderr}"
    );
}

#[test]
fn the_topology_of_this_machine_and_of_a_tree_is_shown() {
    let (code, stderr) = agent(&["topology", "--name", "me"]);
    assert_eq!(code, 0, "{stderr}");
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("proc/sys/kernel/hostname", "host\n");
    write("proc/meminfo", "MemTotal: 8388608 kB\n");
    write("sys/devices/system/cpu/online", "0-3\n");
    for cpu in 0..4 {
        let path = format!("sys/devices/system/cpu/cpu{cpu}/topology");
        write(&format!("{path}/physical_package_id"), "0\n");
        write(&format!("{path}/thread_siblings_list"), &format!("{},{}\n", cpu % 2, cpu % 2 + 2));
    }
    write("sys/devices/system/node/node0/cpulist", "0-3\n");
    write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 8388608 kB\n");
    write("godel.toml", "[agent]\nreserve_memory = '1Gi'\nnvml_library = '/nowhere.so'\n");
    let config = dir.path().join("godel.toml");
    let words = ["agent", "topology", "--root", root, "--config", config.to_str().unwrap()];
    let output = run(&words, &[]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("name       host\ncapacity   cpu 4  memory 7Gi\n"), "{text}");
    assert!(text.ends_with("\nsocket 0\n  numa 1  cpu 4  memory 7Gi  cores 2  CPUs 0-3\n"), "{text}");
    let output = run(&[&words[..], &["-o", "json"]].concat(), &[]);
    let view: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&view["capacity"]["cpu"], &view["zones"][1]["kind"]), (&4_000.into(), &"numa".into()));
    let (code, stderr) = agent(&["topology", "--root", root, "--set", "agent.reserve_cpu=8"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("agent.reserve_cpu is 8, but the machine has only 4"), "{stderr}");
}
