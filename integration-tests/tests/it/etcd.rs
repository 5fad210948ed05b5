//! An etcd of one and of three members below state, while units of every class come and go: members are killed, paused, lost and
//! replaced, their disk and their quota are used up, and their quorum is lost. Nothing acknowledged is lost, nothing that runs
//! ends, and no part of the control plane starts again.

use std::{sync::Arc, time::Duration};

use anyhow::ensure;
use godel_etcd::{
    CallError, Client, ClientConfig, Etcd, Op, RangeRequest, TxnRequest,
    process::{EtcdProcesses, NotStarted, ProcessConfig},
};
use godel_integration_tests::{
    check,
    cluster::{Cluster, Layout, Submission, shown},
    load::Load,
    settings,
    wait::{LIMIT, keep_up, wait_for},
};
use godel_testkit::skip;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use crate::kills::{self, small_generations};

/// Rounds of each fault: one in `make test`, all in `make test-long`.
const N_ROUNDS: usize = 1;
const N_ROUNDS_LONG: usize = 20;
/// The longest time for which a fault is kept up that has commits wait: leases are shorter than the long one.
const SPAN_MS_MAX: u64 = 1_000;
const SPAN_MS_MAX_LONG: u64 = 5_000;
/// Submissions that must be acknowledged while a quorum is there.
const N_MEANWHILE: usize = 16;

/// Of etcd's database: the smallest that state takes.
const QUOTA_BYTES: u64 = 64 << 20;
/// Of the disk of a member: four segments of its log of 64 MiB, its database, and two copies of that.
const DISK_BYTES: u64 = 640 << 20;
/// What another client of etcd puts at once, until its quota is used up.
const BALLAST_BYTES: usize = 1 << 20;

/// What state and the binder say at WARN while its etcd is away, and when another client has used up its quota.
const AWAY: &[&str] =
    &["commits wait for the log of the store", "the disk of the store is full", "the store is full"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A member is killed and comes back.
    Killed,
    /// A member keeps its connections, answers nothing and goes on.
    Paused,
    /// A member's disk is filled, at which etcd ends; there is room again, and it comes back.
    DiskFilled,
    /// Another client uses up the quota of the database; an operator makes room.
    QuotaFilled,
    /// A member is lost with its data, and another one takes its place.
    Replaced,
    /// Two members of three are killed or paused and come back.
    QuorumLost,
}

const OF_ONE: &[Fault] = &[Fault::Killed, Fault::Paused, Fault::DiskFilled, Fault::QuotaFilled];
const OF_THREE: &[Fault] = &[
    Fault::Killed,
    Fault::Paused,
    Fault::DiskFilled,
    Fault::QuotaFilled,
    Fault::Replaced,
    Fault::QuorumLost,
];

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_an_etcd_of_one_member_lose_nothing() {
    go_through(1, OF_ONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_an_etcd_of_three_members_lose_nothing() {
    go_through(3, OF_THREE).await;
}

async fn go_through(n_members: usize, faults: &[Fault]) {
    let dir = tempfile::tempdir().unwrap();
    let Some(etcd) = start_etcd(dir.path(), n_members) else { return };
    let mut site = Site::start(etcd, n_members).await;
    let n_rounds = if settings::is_long() { N_ROUNDS_LONG } else { N_ROUNDS };
    for number in 0..n_rounds * faults.len() {
        site.go_through(faults[number % faults.len()], number).await;
    }
    site.finish().await;
}

/// An etcd of its own; without rights to mount anything its disks cannot be filled.
fn start_etcd(dir: &std::path::Path, n_members: usize) -> Option<EtcdProcesses> {
    let args = [
        "--heartbeat-interval=50",
        "--election-timeout=500",
        "--snapshot-count=1000",
        "--max-wals=2",
        "--max-snapshots=2",
    ];
    let mut config = ProcessConfig {
        n_members,
        quota_bytes: Some(QUOTA_BYTES),
        disk_bytes: Some(DISK_BYTES),
        args: args.map(str::to_owned).into(),
        ..ProcessConfig::new(dir.join("etcd"))
    };
    let mut started = EtcdProcesses::start(config.clone());
    if let Err(why @ NotStarted::NoDisk(_)) = &started {
        skip(format!("rounds of {:?}: {why}", Fault::DiskFilled));
        config.disk_bytes = None;
        started = EtcdProcesses::start(config);
    }
    started.map_err(skip).ok()
}

/// A control plane with its store in an etcd. It ends before the etcd does.
struct Site {
    cluster: Cluster,
    load: Load,
    etcd: EtcdProcesses,
    n_members: usize,
}

impl Site {
    async fn start(etcd: EtcdProcesses, n_members: usize) -> Self {
        let settings = [
            ("engine", "etcd".to_owned()),
            ("etcd.endpoints", etcd.endpoints().join(",")),
            ("etcd.timeout", "1s".to_owned()),
            ("etcd.quota_bytes", QUOTA_BYTES.to_string()),
        ];
        let layout = Layout {
            n_nodes: 12,
            n_dispatchers: 2,
            n_schedulers: 2,
            n_binders: 2,
            env: small_generations(),
            settings: settings.map(|(key, value)| (format!("state.{key}"), value)).into(),
            ..Layout::default()
        };
        let mut cluster = Cluster::start(layout).await;
        cluster.announce(AWAY);
        let load = Load::new(cluster.client_address());
        Self { cluster, load, etcd, n_members }
    }

    /// A fault under load, and what holds when it is over.
    async fn go_through(&mut self, fault: Fault, number: usize) {
        if fault == Fault::DiskFilled && !self.etcd.has_disks() {
            return;
        }
        let seed = settings::seed() + u64::try_from(number).unwrap();
        let mut rng = StdRng::seed_from_u64(seed);
        self.cluster.note(&format!("round {number}, seed {seed}: {fault:?}"));
        let pids = self.pids();
        self.load.go_on();
        self.load.wait_submitted(rng.random_range(1..N_MEANWHILE)).await;
        keep_up(Duration::from_micros(rng.random_range(0..40_000))).await;
        // The one that leads, or any.
        let leader = self.etcd.leader().filter(|_| rng.random());
        let victim = leader.unwrap_or_else(|| rng.random_range(0..self.n_members));
        self.inflict(fault, victim, &mut rng).await;
        self.load.wait_submitted(N_MEANWHILE).await;
        self.load.rest().await;
        self.wait_members().await;
        self.check().await;
        assert_eq!(self.pids(), pids, "no process of the control plane may end");
    }

    async fn inflict(&mut self, fault: Fault, victim: usize, rng: &mut StdRng) {
        let is_one_enough = self.n_members > 1;
        match fault {
            Fault::Killed => {
                self.etcd.kill(victim);
                self.endure(is_one_enough, rng).await;
                self.etcd.restart(victim).unwrap();
            }
            Fault::Paused => {
                self.etcd.pause(victim);
                self.endure(is_one_enough, rng).await;
                self.etcd.resume(victim);
            }
            Fault::DiskFilled => {
                self.etcd.fill_disk(victim).unwrap();
                let etcd = &mut self.etcd;
                wait_for("the end of a member without room", LIMIT, async || {
                    if etcd.has_ended(victim) { Ok(()) } else { Err("it goes on") }
                })
                .await;
                self.endure(is_one_enough, rng).await;
                self.etcd.free_disk(victim).unwrap();
                self.etcd.restart(victim).unwrap();
            }
            Fault::QuotaFilled => {
                self.use_up_quota().await;
                self.endure(false, rng).await;
                self.make_room().await;
            }
            Fault::Replaced => {
                self.etcd.lose(victim).unwrap();
                self.endure(is_one_enough, rng).await;
                self.etcd.replace(victim).unwrap();
                // Its file has grown with everything that its log had ever held.
                self.wait_members().await;
                self.make_room().await;
            }
            Fault::QuorumLost => {
                let victims = [victim, (victim + 1) % self.n_members];
                let is_killed = rng.random();
                for member in victims {
                    if is_killed { self.etcd.kill(member) } else { self.etcd.pause(member) }
                }
                self.endure(false, rng).await;
                for member in victims {
                    if is_killed { self.etcd.restart(member).unwrap() } else { self.etcd.resume(member) }
                }
            }
        }
    }

    /// Another client puts what it likes, until nothing more is taken.
    async fn use_up_quota(&self) {
        let etcd = self.etcd.client(Duration::from_secs(5));
        let put = || {
            let ops = vec![Op::Put("others/ballast".into(), vec![b'x'; BALLAST_BYTES].into())];
            etcd.txn(TxnRequest { ops, ..TxnRequest::default() })
        };
        wait_for("the alarm of etcd", LIMIT, async || {
            for _ in 0..QUOTA_BYTES / BALLAST_BYTES as u64 {
                match put() {
                    Err(CallError::NoSpace) => return Ok(()),
                    Err(error) => return Err(error.to_string()),
                    Ok(_) => {}
                }
            }
            Err("all is taken".to_owned())
        })
        .await;
    }

    /// What an operator does until state takes writes: each member compacts in its own time, and its file shrinks only afterwards.
    async fn make_room(&self) {
        let etcd = self.etcd.client(Duration::from_secs(5));
        wait_for("room in etcd", LIMIT, async || {
            self.etcd.free_space()?;
            let sizes = etcd.sizes()?;
            ensure!(sizes.db_bytes < QUOTA_BYTES / 2 && !sizes.has_no_space, "{sizes:?}");
            let status = self.cluster.api.store_status().await?;
            ensure!(!status.full, "state has none");
            Ok::<_, anyhow::Error>(())
        })
        .await;
    }

    /// Keeps the fault up: with a quorum commits go on, without one they wait, and what is committed can be read.
    async fn endure(&self, has_quorum: bool, rng: &mut StdRng) {
        if has_quorum {
            return self.load.wait_submitted(N_MEANWHILE).await;
        }
        wait_for("commits to wait for etcd", LIMIT, async || {
            let status = self.cluster.api.store_status().await?;
            ensure!(!status.waiting_for.is_empty() || status.full, "they go on");
            Ok(())
        })
        .await;
        let records = self.cluster.api.records().await.unwrap();
        assert!(!records.units.is_empty() && records.nodes.len() == 12);
        let span_ms = if settings::is_long() { SPAN_MS_MAX_LONG } else { SPAN_MS_MAX };
        keep_up(Duration::from_millis(rng.random_range(0..span_ms))).await;
    }

    /// Waits until each member answers what all have agreed on.
    async fn wait_members(&self) {
        for endpoint in self.etcd.endpoints() {
            let config = ClientConfig {
                endpoints: vec![endpoint.clone()],
                timeout: Duration::from_secs(2),
                tls: None,
                user: None,
            };
            let client: Arc<dyn Etcd> = Arc::new(Client::start(&config).unwrap());
            wait_for(&format!("an answer of {endpoint}"), LIMIT, async || {
                let range = RangeRequest { from: "a".into(), to: "b".into(), limit: 1, keys_only: true };
                client.range(range).map(drop)
            })
            .await;
        }
    }

    /// Process ids of all parts, which all run.
    fn pids(&mut self) -> Vec<(String, u32)> {
        let names = self.cluster.names();
        let pid = |name: String| {
            assert!(self.cluster.is_running(&name), "{name} has ended:\n{}", self.cluster.log(&name));
            let pid = self.cluster.pid(&name);
            (name, pid)
        };
        names.into_iter().map(pid).collect()
    }

    /// All that was acknowledged is there and has its place, nothing else is, nothing was ended, and the audit holds.
    async fn check(&mut self) {
        let acknowledged = self.load.acknowledged();
        let records = self.cluster.wait_all_bound(acknowledged.len()).await;
        let mut problems = check::problems(&records, &acknowledged);
        problems.extend(self.load.problems(&records));
        assert_eq!(problems, Vec::<String>::new());
        let ledger = self.cluster.path("load.ledger");
        self.load.write_ledger(&ledger).unwrap();
        self.cluster.audit(&[&Submission::of_file(&ledger, acknowledged.len())]);
        let status = self.cluster.api.store_status().await.unwrap();
        assert_eq!((status.waiting_for.as_str(), status.full), ("", false));
    }

    /// What is in etcd is what the next state finds.
    async fn finish(mut self) {
        let before = self.cluster.api.records().await.unwrap();
        self.cluster.stop("state").await;
        let (dir, endpoints) = (self.cluster.path("state"), self.etcd.endpoints().join(","));
        let checked = self.cluster.godel(&[
            "state",
            "check",
            dir.to_str().unwrap(),
            &format!("--etcd-endpoints={endpoints}"),
        ]);
        assert!(checked.status.success(), "{}", shown(&checked));
        self.cluster.restart("state");
        self.cluster.wait_ready().await;
        let after = self.cluster.api.records().await.unwrap();
        assert_eq!(after.units, before.units);
        self.check().await;
        self.cluster.announce(kills::AWAY);
        let (n_submitted, n_deleted) = (self.load.n_submitted(), self.load.n_deleted());
        self.cluster.note(&format!(
            "{n_submitted} submissions and {n_deleted} deletions were acknowledged; none is lost"
        ));
        self.cluster.assert_quiet();
    }
}
