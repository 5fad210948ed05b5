//! The commands of `docs/operations.md`, section by section, on a control plane and an etcd of three members, each on a machine of its own as
//! the page names it (`integration-tests/machines`). Before a section is played, what it is about is done to them.

use std::{collections::BTreeSet, os::unix::fs::symlink};

use godel_testkit::skip;

use crate::page::{Shell, blocks, blocks_by_heading, commands, in_repository};

const PAGE: &str = "docs/operations.md";

const START: &str = "## Starting on etcd";
const BACKUPS: &str = "## Making backups";
const RESTORE: &str = "## Restoring yesterday's backup";
const MOVE: &str = "## Moving a store";
const NO_ANSWER: &str = "## etcd does not answer";
const LOST_MEMBER: &str = "## A member of etcd is lost";
const FULL_DISK: &str = "## The disk of an etcd member is full";
const NO_SPACE: &str = "## etcd is out of space";
const RESTORED_ETCD: &str = "## etcd was restored from a backup";
const LOST_STATE: &str = "## The machine of state is lost";
const DAMAGE: &str = "## The store is damaged";
const MORE_STATES: &str = "## More than one state";

/// Sections with commands.
const PLAYED: [&str; 12] = [
    START,
    BACKUPS,
    RESTORE,
    MOVE,
    NO_ANSWER,
    LOST_MEMBER,
    FULL_DISK,
    NO_SPACE,
    RESTORED_ETCD,
    LOST_STATE,
    DAMAGE,
    MORE_STATES,
];

/// Commands that change nothing and fail while something is not well.
const LOOKS: [&str; 3] = ["godel status", "godel audit", "etcdctl endpoint health"];

/// Kills a service of a machine, as a lost machine does.
fn kill(host: &str, unit: &str) -> String {
    format!("kill -9 $(cat machines/{host}/{unit}.pid)")
}

/// A control plane with a unit that runs.
struct Site {
    shell: Shell,
}

impl Site {
    /// Machines with an etcd that runs, and no control plane yet. `None`, said in the output of the test, where there is no etcd or this user may
    /// make no machines.
    fn prepare() -> Option<Self> {
        let mut shell = Shell::open()?;
        if shell.run("command -v etcd etcdctl").is_none_or(|(code, _)| code != 0) {
            skip("no `etcd` and `etcdctl` are in PATH; Debian has them in etcd-server and etcd-client");
            return None;
        }
        let machines = in_repository("integration-tests/machines");
        for program in ["ssh", "systemctl"] {
            symlink(machines.join(program), shell.dir.path().join("bin").join(program)).unwrap();
        }
        let set_up = format!(". {}", machines.join("set-up.sh").display());
        if shell.run(&set_up).is_none_or(|(code, _)| code != 0) {
            skip("this user may mount nothing in namespaces of its own");
            return None;
        }
        let mut site = Self { shell };
        let config = in_repository("deploy/systemd/godel.toml");
        site.run(&format!("cp {} /etc/godel/godel.toml", config.display()));
        site.run("(for host in etcd-1 etcd-2 etcd-3; do ssh $host systemctl start etcd & done; wait)");
        Some(site)
    }

    /// A control plane whose store is in the etcd.
    async fn on_etcd() -> Option<Self> {
        let mut site = Self::prepare()?;
        site.play(START).await;
        site.start_others().await;
        Some(site)
    }

    /// Starts everything but state, which runs, and a unit.
    async fn start_others(&mut self) {
        self.run("cp /var/lib/godel/pki/seal.key /var/backups/seal.key");
        self.run("godel context login --socket /var/lib/godel/godel.sock --state https://control-1:7700");
        self.run(
            "(umask 077; for role in dispatcher binder scheduler; do godel join-token --role $role > /etc/godel/$role.token; done)",
        );
        self.run("(umask 077; godel node join-token --names 'node-*' > agent.token)");
        self.run("for role in dispatcher binder scheduler; do systemctl start godel@$role; done");
        self.shell.start(
            "godel agent --join-file agent.token --address https://control-1:7700 --simulate '4x cpu=4,memory=8Gi' &",
        );
        self.run_unit("kept").await;
    }

    /// Runs a command that must succeed.
    fn run(&mut self, command: &str) -> String {
        let (code, text) = self.shell.run(command).unwrap_or_else(|| panic!("{command}: the shell ended"));
        assert_eq!(code, 0, "{command}: {text}");
        text
    }

    /// Plays all blocks of a section.
    async fn play(&mut self, heading: &str) {
        for block in blocks(PAGE, heading) {
            self.play_block(&block).await;
        }
    }

    /// Plays a block. What only looks is repeated until all is well: members and leaders need some seconds after a restart.
    async fn play_block(&mut self, block: &str) {
        for command in commands(block) {
            if LOOKS.iter().any(|look| command.starts_with(look)) {
                self.shell.wait(command.trim_end(), |_| true).await;
            } else {
                self.shell.play(&command);
            }
        }
    }

    /// Waits until a command succeeds and prints one of these.
    async fn wait(&mut self, command: &str, any_of: &[&str]) {
        self.shell.wait(command, |text| any_of.iter().any(|part| text.contains(part))).await;
    }

    /// Submits a unit and waits until it runs: units are acknowledged, placed and started.
    async fn run_unit(&mut self, name: &str) {
        let submit = format!("godel unit submit --name {name} --class service --cpu 100m --memory 64Mi");
        self.wait(&format!("{submit} || godel unit describe {name}"), &[name]).await;
        self.wait(&format!("godel unit wait {name} --for phase=running"), &[""]).await;
    }

    /// Waits until a unit runs that was there before.
    async fn wait_running(&mut self, name: &str) {
        self.wait(&format!("godel unit describe {name}"), &["phase      Running"]).await;
    }

    async fn assert_lost(&mut self, name: &str) {
        self.wait(&format!("godel unit describe {name}; test $? = 4"), &["no unit"]).await;
    }

    /// State refuses what it finds, and says why in its log.
    fn assert_not_served(&mut self, why: &str) {
        self.run("! systemctl restart godel@state");
        let log = self.run("cat machines/control-1/godel@state.log");
        assert!(log.contains(why), "{log}");
    }
}

#[test]
fn all_commands_of_the_page_are_played() {
    let headings: BTreeSet<String> =
        blocks_by_heading(PAGE).into_iter().map(|(heading, _)| heading).collect();
    assert_eq!(headings, PLAYED.map(str::to_owned).into());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_fails_is_brought_back() {
    let Some(mut site) = Site::on_etcd().await else { return };

    site.run(&format!("{}; {}", kill("etcd-2", "etcd"), kill("etcd-3", "etcd")));
    site.shell.start("godel unit submit --name waiting --class service --cpu 100m --memory 64Mi &");
    site.wait("godel status || true", &["commits wait"]).await;
    site.run("godel unit list");
    site.play(NO_ANSWER).await;
    site.wait_running("waiting").await;

    site.run(&format!("{}; rm -rf machines/etcd-3/lib/etcd/*", kill("etcd-3", "etcd")));
    site.run_unit("while-a-member-is-lost").await;
    site.play(LOST_MEMBER).await;
    assert_eq!(site.run("etcdctl member list").matches(", started,").count(), 3);

    fill_disk(&mut site).await;
    site.run_unit("while-a-disk-is-full").await;
    site.run("rm machines/etcd-2/lib/etcd/filler");
    site.play(FULL_DISK).await;

    fill_quota(&mut site).await;
    let [free, raise] = &blocks(PAGE, NO_SPACE)[..] else {
        panic!("one block frees space, one raises the quota")
    };
    site.play_block(free).await;
    site.wait_running("refused-or-waiting").await;
    site.play_block(raise).await;
    site.run_unit("beyond-the-old-quota").await;
    site.wait("godel audit --patience 1m", &["I1 ok"]).await;
}

/// Puts the data of a member on a small disk, and fills that until the member ends.
async fn fill_disk(site: &mut Site) {
    site.run("ssh etcd-2 systemctl stop etcd");
    site.run("mv machines/etcd-2/lib/etcd etcd-2 && mkdir machines/etcd-2/lib/etcd");
    site.run("mount -t tmpfs -o size=256m tmpfs machines/etcd-2/lib/etcd && cp -a etcd-2/. machines/etcd-2/lib/etcd");
    site.run("ssh etcd-2 systemctl start etcd");
    site.run("! cat /dev/zero > machines/etcd-2/lib/etcd/filler");
    let put = "head -c 1000000 /dev/zero | tr '\\0' x | ETCDCTL_ENDPOINTS=http://etcd-1:2379 etcdctl put others/filler";
    let pid = "machines/etcd-2/etcd.pid";
    site.wait(&format!("{put}; ! grep -s '^State:' /proc/$(cat {pid})/status | grep -v Z"), &[""]).await;
}

/// Has another user fill an etcd of a small quota until it raises its alarm.
async fn fill_quota(site: &mut Site) {
    site.run(
        "for host in etcd-1 etcd-2 etcd-3; do ssh $host \"sed -i 's/BYTES=.*/BYTES=67108864/' /etc/default/etcd; systemctl restart etcd\"; done",
    );
    site.run("sed -i 's/^quota_bytes = .*/quota_bytes = 67108864/' /etc/godel/godel.toml; systemctl restart godel@state");
    site.wait(
        "head -c 1000000 /dev/zero | tr '\\0' x | etcdctl put others/filler; etcdctl alarm list",
        &["NOSPACE"],
    )
    .await;
    site.shell.start(
        "(until godel unit submit --name refused-or-waiting --class service --cpu 100m --memory 64Mi; do sleep 1; done) &",
    );
    site.wait("godel status || true", &["commits wait", "FULL"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_in_etcd_is_taken_over_and_repaired() {
    let Some(mut site) = Site::on_etcd().await else { return };

    site.run(&kill("control-1", "godel@state"));
    site.run("rm -rf /var/lib/godel/state /var/lib/godel/pki /var/lib/godel/godel.sock");
    site.play(LOST_STATE).await;
    site.wait_running("kept").await;
    site.run_unit("on-the-new-machine").await;

    let other = "machines/control-2";
    site.run(&format!("mkdir {other}/lib/godel && cp -a /var/lib/godel/pki {other}/lib/godel/"));
    site.run(&format!(
        "printf '%s\\n' GODEL_STATE__SERVER__LISTEN=127.0.1.2:7710 GODEL_STATE__SERVER__ADVERTISE=https://control-2:7710 GODEL_STATE__SERVER__METRICS_LISTEN=127.0.1.2:7810 METRICS=127.0.1.2:7810 > {other}/default/godel"
    ));
    site.play(MORE_STATES).await;
    site.wait("godel status", &["member/state/control-2"]).await;
    site.run_unit("by-two-states").await;
    let log = site.run(&format!("cat {other}/godel@state.log"));
    assert!(log.contains("this state leads"), "{log}");
    // The one that leads now is lost.
    site.run(&kill("control-2", "godel@state"));
    site.run_unit("by-the-other-state").await;
    site.run("sed -i /^shared/d /etc/godel/godel.toml && systemctl restart godel@state");

    site.run("ETCDCTL_ENDPOINTS=http://etcd-1:2379 etcdctl snapshot save etcd.db");
    site.run_unit("later").await;
    site.run(
        "for host in etcd-1 etcd-2 etcd-3; do ssh $host 'systemctl stop etcd; rm -rf /var/lib/etcd'; done",
    );
    site.run(
        "for host in etcd-1 etcd-2 etcd-3; do (. machines/$host/default/etcd; etcdctl snapshot restore etcd.db --name $host --initial-cluster $ETCD_INITIAL_CLUSTER --initial-advertise-peer-urls $ETCD_INITIAL_ADVERTISE_PEER_URLS --data-dir machines/$host/lib/etcd); done",
    );
    site.run("(for host in etcd-1 etcd-2 etcd-3; do ssh $host systemctl start etcd & done; wait)");
    site.assert_not_served("was at revision");
    site.play(RESTORED_ETCD).await;
    site.wait_running("kept").await;
    site.wait_running("by-two-states").await;
    site.assert_lost("later").await;
    site.run_unit("after-the-restore-of-etcd").await;

    site.run("systemctl stop godel@state");
    site.run(
        "etcdctl del \"$(etcdctl get --prefix --keys-only godel/ | grep /log/ | tail -n 2 | head -n 1)\"",
    );
    site.assert_not_served("the store is damaged");
    site.play(DAMAGE).await;
    site.wait_running("kept").await;
    site.run_unit("after-the-repair").await;
    site.wait("godel audit --patience 1m", &["I1 ok"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_moves_and_a_backup_is_restored_into_both_engines() {
    let Some(mut site) = Site::prepare() else { return };
    site.run("systemctl start godel@state");
    // As the first section has it, but for the engine.
    let [_, config] = &blocks(PAGE, START)[..] else { panic!("one block is of etcd, one of state") };
    let (_, config) = config.split_once('\n').unwrap();
    let (config, _) = config.split_once("systemctl").unwrap();
    site.run(config);
    site.run("export ETCDCTL_ENDPOINTS=http://etcd-1:2379,http://etcd-2:2379,http://etcd-3:2379");
    site.start_others().await;
    site.play(BACKUPS).await;
    site.run_unit("later").await;

    let [there, back] = &blocks(PAGE, MOVE)[..] else { panic!("one block moves there, one back") };
    for (block, engine) in [(there, "etcd at revision"), (back, "sled at revision")] {
        site.play_block(block).await;
        site.wait("godel status", &[engine]).await;
        site.wait_running("later").await;
    }
    site.wait("godel audit --patience 1m", &["I1 ok"]).await;

    let [files, etcd] = &blocks(PAGE, RESTORE)[..] else {
        panic!("one block restores into files, one into an etcd")
    };
    for (block, engine) in [(files, "sled at revision"), (etcd, "etcd at revision")] {
        site.play_block(block).await;
        site.wait("godel status", &[engine]).await;
        site.wait_running("kept").await;
        site.assert_lost("later").await;
    }
    site.run_unit("after-the-restore").await;
    site.wait("godel audit --patience 1m", &["I1 ok"]).await;
}
