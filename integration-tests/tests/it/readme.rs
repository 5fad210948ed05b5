//! The blocks of the README, line by line in order, each on a cluster in a network of its own. What
//! builds, tests or benchmarks is looked up in the Makefile alone; the block of containers is played by `deploy/test-compose.sh`.

use std::process::Command;

use crate::page::{Shell, blocks, commands, in_repository};

const PAGE: &str = "README.md";

#[test]
fn what_the_readme_makes_is_in_the_makefile() {
    for block in blocks(PAGE, "# godel") {
        for command in commands(&block) {
            let target = command.split_whitespace().nth(1).unwrap();
            let makefile = in_repository("");
            let output = Command::new("make").arg("-n").arg(target).current_dir(makefile).output().unwrap();
            assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// The demo has fewer tasks than with `make run`: the unit that the README names is among them.
#[tokio::test(flavor = "multi_thread")]
async fn the_quick_start_works_line_by_line() {
    let Some(mut shell) = Shell::open() else { return };
    let quick_start = blocks(PAGE, "## Quick start");
    let [demo, own, processes] = &quick_start[..] else { panic!("{} blocks", quick_start.len()) };
    let cut = shell.run("head -n 301 data/openb/openb_pod_list_default.csv > tasks.csv");
    assert_eq!(cut, Some((0, String::new())));
    shell.start("godel demo --tasks tasks.csv --json summary.json &");
    shell.wait("cat summary.json", |text| text.contains("placed")).await;
    shell.play(demo);
    shell.play(own);

    let Some(mut shell) = Shell::open() else { return };
    shell.play(processes);
    shell.wait("godel node list -o json | grep -c '\"name\"'", |text| text == "100").await;
    for block in blocks(PAGE, "## Use grpcurl") {
        shell.play(&block);
    }
}
