//! Rates from counters; and real traffic between two namespaces, as far as this machine has what that needs.

use std::{
    fs::{self, File},
    io::Read as _,
    net::TcpListener,
    process::{Child, Command},
    time::{Duration, Instant},
};

use godel_base::resources::Resources;
use godel_testkit::skip;
use rustix::{
    fd::AsFd as _,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use super::*;
use crate::cgroup::enter;

/// Set for a test that runs in namespaces of its own.
const INSIDE: &str = "GODEL_TEST_NAMESPACES";
/// Bytes that are sent.
const N_BYTES: u64 = 1_500_000;
/// What the limited run may send, bits per second: the bytes take 1.5 s then.
const RATE: i64 = 8_000_000;

#[test]
fn rates_are_what_was_added_between_two_looks() {
    let mut bandwidths = Bandwidths::off("a test");
    let counts = |network: &[(&str, Counted)], memory: &[(&str, u64)]| Counts {
        network: network.iter().map(|(name, counted)| ((*name).to_owned(), *counted)).collect(),
        memory: memory.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect(),
    };
    bandwidths.count(counts(&[("a", (100, 1_000)), ("c", (9, 9))], &[("a", 50)]), Millis(1_000));
    assert!(bandwidths.rates.is_empty(), "nothing to compare it with");
    bandwidths
        .count(counts(&[("a", (350, 2_000)), ("b", (7, 7)), ("c", (5, 9))], &[("a", 4_050)]), Millis(3_000));
    let rates = |network, memory| Rates { network, memory };
    let expected = [
        ("a".to_owned(), rates(Some((1_000, 4_000)), Some(2_000))),
        ("b".to_owned(), rates(Some((28, 28)), None)),
        // A counter that begins anew is no use.
        ("c".to_owned(), rates(Some((0, 0)), None)),
    ];
    assert_eq!(bandwidths.rates, expected.into());
    assert_eq!(rates(Some((1, 2)), None).plus(rates(Some((3, 4)), Some(5))), rates(Some((4, 6)), Some(5)));
    let off = Care::Accounted("a test".to_owned());
    assert_eq!(bandwidths.care(), (off.clone(), off));
}

/// Runs a test of this module once more in a network and with mounts of its own. True: this is that run. Where a machine makes no
/// namespaces that is said in the output.
fn is_inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--propagation", "private"]);
        command
    };
    if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        skip("this machine makes no namespaces for this user");
        return false;
    }
    let own = std::env::current_exe().unwrap();
    let mut inside = unshare();
    inside.arg(own).args(["--exact", &format!("bandwidth::tests::{test}"), "--nocapture"]).env(INSIDE, "1");
    let output = inside.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "inside the namespaces");
    false
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output =
        Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("{program}: {}", text(&output.stderr)))
    }
}

/// A process that keeps a network of its own, which `far` is an end of; this end is `near`.
struct Peer(Child);

impl Peer {
    fn new() -> Result<Self, String> {
        run("ip", &["link", "add", "near", "type", "veth", "peer", "name", "far"])?;
        let mut child = Command::new("unshare")
            .args(["--net", "sleep", "1000"])
            .spawn()
            .map_err(|error| error.to_string())?;
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        let pid = child.id().to_string();
        while fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|theirs| theirs == own) {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(format!("unshare: {status}"));
            }
            std::thread::yield_now();
        }
        let peer = Self(child);
        run("ip", &["link", "set", "far", "netns", &pid])?;
        let there = |arguments: &[&str]| {
            run("nsenter", &[&["--target", pid.as_str(), "--net", "ip"], arguments].concat())
        };
        there(&["addr", "add", "10.9.0.2/24", "dev", "far"])?;
        there(&["link", "set", "far", "up"])?;
        run("ip", &["addr", "add", "10.9.0.1/24", "dev", "near"])?;
        run("ip", &["link", "set", "near", "up"])?;
        Ok(peer)
    }

    /// Listens there, and returns how long the bytes of each connection took.
    fn listen(&self, n: usize) -> std::thread::JoinHandle<Vec<Duration>> {
        let namespace = File::open(format!("/proc/{}/ns/net", self.0.id())).unwrap();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let listener = TcpListener::bind("10.9.0.2:7000").unwrap();
            ready.send(()).unwrap();
            let took = |_| {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut n_bytes, mut bytes) = (0, vec![0; 1 << 16]);
                let began = Instant::now();
                loop {
                    match stream.read(&mut bytes).unwrap() {
                        0 => break,
                        n => n_bytes += n as u64,
                    }
                }
                assert_eq!(n_bytes, N_BYTES);
                began.elapsed()
            };
            (0..n).map(took).collect()
        });
        is_ready.recv().unwrap();
        thread
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Control groups of a test, which go with it.
struct Group(PathBuf);

impl Group {
    fn new(parent: &Path, name: &str) -> Self {
        let dir = parent.join(format!("godel-test-{name}-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    fn member(&self, name: &str, controller: &str, ask: BandwidthAsk) -> Member {
        let group = serde_json::from_value(serde_json::json!({"dirs": [[controller, self.0]]})).unwrap();
        Member { name: name.to_owned(), group, ask }
    }

    /// Sends the bytes to the peer, from within.
    fn send(&self) -> Child {
        let list = File::options().write(true).open(self.0.join("cgroup.procs")).unwrap();
        let mut command = Command::new("bash");
        command.args(["-c", &format!("head -c {N_BYTES} /dev/zero > /dev/tcp/10.9.0.2/7000")]);
        enter::begin_as(&mut command, vec![list], Vec::new(), None, 0o022);
        command.spawn().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ended = fs::remove_dir(&self.0);
    }
}

/// One run may send little, another one asks for nothing, a third one is best-effort work.
fn real_traffic(parent: &Path, controller: &str) {
    let peer = match Peer::new() {
        Ok(peer) => peer,
        Err(why) => return skip(why),
    };
    let dir = tempfile::tempdir().unwrap();
    let mut node = NodeDef::new("n", Resources::new([(resources::NETWORK, 1_000_000_000)]).unwrap());
    node.uid.clear();
    let setting =
        Setting { dir: dir.path(), name: "of-a-test", interfaces: &["near".to_owned()], node: &node };
    let open = || Bandwidths::open(&Tree::new(Path::new("/")), Ok(()), &setting);
    let mut bandwidths = open();
    let (network, _) = bandwidths.care();
    let Care::Kept(why) = &network else { return skip(network.reason()) };
    assert_eq!(why, "");
    let asks = |network, is_best_effort| BandwidthAsk { network, is_best_effort, ..BandwidthAsk::default() };
    let groups = ["limited", "free", "rest"].map(|name| Group::new(parent, name));
    let members = [
        groups[0].member("1-0-0.0", controller, asks(Some(RATE), false)),
        groups[1].member("2-0-0.0", controller, asks(None, false)),
        groups[2].member("3-0-0.0", controller, asks(Some(RATE), true)),
    ];
    bandwidths.join(&members[0]);
    bandwidths.look(&members, Millis(0));
    let listening = peer.listen(2);
    assert!(groups[0].send().wait().unwrap().success());
    assert!(groups[2].send().wait().unwrap().success());
    let took = listening.join().unwrap();
    println!("{N_BYTES} bytes took {took:?}, the first at {RATE} bits per second");
    assert!(
        took[0] > Duration::from_millis(1_200),
        "{took:?}: no faster than asked for, but for what a queue lets through at first"
    );
    let rates = bandwidths.look(&members, Millis(8_000)).clone();
    let sent = i64::try_from(N_BYTES).unwrap();
    for (member, is_used) in members.iter().zip([true, false, true]) {
        let (received, sent_rate) = rates[&member.name].network.unwrap();
        // Eight bits over eight seconds: the bytes, with headers.
        let bounds = if is_used { sent..sent * 12 / 10 } else { 0..1 };
        assert!(bounds.contains(&sent_rate), "{}: {sent_rate}", member.name);
        assert_eq!(received > 0, is_used, "answers are counted as well: {received}");
    }
    let classes = || run("tc", &["class", "show", "dev", "near"]).unwrap();
    assert_eq!(classes().lines().count(), 4, "the root, the rest, best effort, and who asks: {}", classes());
    // A firewall starts and flushes everything: the table is made anew.
    run("nft", &["flush", "ruleset"]).unwrap();
    bandwidths.look(&members, Millis(16_000));
    let tables = || run("nft", &["list", "tables"]).unwrap();
    assert!(tables().contains("godel-of-a-test"), "{}", tables());
    // The next agent replaces what this one leaves.
    drop(bandwidths);
    let mut bandwidths = open();
    assert_eq!(bandwidths.care().0, Care::Kept(String::new()));
    bandwidths.look(&members[..1], Millis(0));
    assert_eq!(classes().lines().count(), 4, "{}", classes());
    // Who has gone is forgotten.
    bandwidths.look(&[], Millis(1_000));
    assert_eq!((classes().lines().count(), tables().as_str()), (3, ""));
    drop(bandwidths);
    assert_eq!(classes(), "", "the interface is as it was");
    // A queue that somebody else has made stays.
    run("tc", &["qdisc", "add", "dev", "near", "root", "handle", "9:", "htb"]).unwrap();
    let (network, _) = open().care();
    assert!(
        matches!(&network, Care::Measured(why) if why.contains("its queue 9: is somebody else's")),
        "{network:?}"
    );
}

#[test]
fn real_traffic_is_counted_and_kept_by_path() {
    if !is_inside("real_traffic_is_counted_and_kept_by_path") {
        return;
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let unified = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let Some(mount) = unified.and_then(|line| line.split(' ').nth(4)) else {
        return println!("NOT HERE: version 2 of control groups is not mounted");
    };
    real_traffic(Path::new(mount), "");
}

#[test]
fn real_traffic_is_counted_and_kept_by_class() {
    if !is_inside("real_traffic_is_counted_and_kept_by_class") {
        return;
    }
    // It is not mounted for the test: a hierarchy outlives its mount, and a container engine that meets one without a mount does
    // not see any more which containers end for want of memory.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let classes = mounts.lines().find(|line| {
        line.split_once(" - cgroup ")
            .is_some_and(|(_, kind)| kind.split([' ', ',']).any(|part| part == "net_cls"))
    });
    let Some(mount) = classes.and_then(|line| line.split(' ').nth(4)) else {
        return println!("NOT HERE: the control groups of network classes are not mounted");
    };
    real_traffic(Path::new(mount), "net_cls");
}
