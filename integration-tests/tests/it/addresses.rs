//! Addresses that are taken, that nobody can reach, or that ask for what is not spoken: each is named.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    process::{Command, Output},
};

use godel_integration_tests::{cluster::shown, settings::godel_bin};

/// An address of this test process alone, so that its ports are free.
fn own_ip(number: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x7f00_0000 | 0x40_0000 | (std::process::id() & 0x3_ffff) << 4 | number))
}

fn godel(args: &[String]) -> Output {
    // No cluster of these tests becomes the current one of whoever runs them.
    Command::new(godel_bin()).args(args).env("GODEL_CONTEXTS", "/nonexistent/contexts").output().unwrap()
}

/// `godel up` on ports of its own, in memory.
fn up(ip: IpAddr, settings: &[String]) -> Output {
    let mut args: Vec<String> = ["up", "--memory", "--port", "12000"].map(str::to_owned).into();
    for part in ["state", "dispatcher", "binder", "scheduler"] {
        args.push(format!("--set={part}.server.listen={ip}:0"));
    }
    for (part, port) in [("state", 7800), ("dispatcher", 7801), ("binder", 7802), ("scheduler", 7803)] {
        args.push(format!("--set={part}.server.metrics_listen={ip}:{port}"));
    }
    args.extend(settings.iter().map(|setting| format!("--set={setting}")));
    godel(&args)
}

#[test]
fn a_port_in_use_is_named_whatever_fails_with_it() {
    for (number, part) in (0u16..).zip(["state", "dispatcher", "binder", "scheduler s1"]) {
        let ip = own_ip(u32::from(number));
        for port in [12_000 + number, 12_100 + number] {
            let _taken = TcpListener::bind(SocketAddr::new(ip, port)).unwrap();
            let output = up(ip, &[]);
            let text = shown(&output);
            assert_eq!(output.status.code(), Some(1), "{text}");
            assert!(text.contains(&format!("{part}: ")) && text.contains(&format!("{ip}:{port}")), "{text}");
            assert!(text.contains("in use"), "{text}");
            assert_eq!(text.contains("metrics: "), port > 12_050, "{text}");
        }
    }
}

#[test]
fn a_file_says_where_metrics_are_shown() {
    let ip = own_ip(9);
    // Where they would be without the setting, and where they are to be.
    let _taken = TcpListener::bind(SocketAddr::new(ip, 12_100)).unwrap();
    let _wanted = TcpListener::bind(SocketAddr::new(ip, 12_310)).unwrap();
    let output = up(ip, &[format!("state.server.metrics_listen={ip}:12310")]);
    let text = shown(&output);
    assert!(text.contains(&format!("state: metrics: {ip}:12310")), "{text}");
}

#[test]
fn an_address_of_every_interface_is_not_told_to_others() {
    let args = [
        "serve",
        "state",
        "--insecure",
        "--listen",
        "0.0.0.0:0",
        "--metrics-listen",
        "127.0.0.1:0",
        "--set",
        "state.engine=memory",
    ];
    let output = godel(&args.map(str::to_owned));
    let text = shown(&output);
    assert!(!output.status.success() && text.contains("advertise"), "{text}");
}

/// Where it would not start anyway: state is nowhere, and the address is no one's.
const NOBODY: &str = "192.0.2.1:9";

#[test]
fn other_machines_reach_nothing_unless_asked_for() {
    let refused = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let output = godel(&args);
        let text = shown(&output);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
        assert!(text.contains("can be reached from other machines"), "{args:?}: {text}");
        assert!(text.contains(NOBODY) && text.contains("--insecure"), "{args:?}: {text}");
    };
    for part in ["state", "dispatcher", "binder", "scheduler"] {
        // The others speak plain text because the state that they call does.
        let plain_text = if part == "state" { "--tls=off" } else { "--address=http://127.0.0.1:1" };
        refused(&["serve", part, plain_text, "--listen", NOBODY, "--metrics-listen", "127.0.0.1:0"]);
        refused(&["serve", part, plain_text, "--listen", "127.0.0.1:0", "--metrics-listen", NOBODY]);
        let listen = format!("--set={part}.server.metrics_listen={NOBODY}");
        refused(&["up", "--memory", "--tls=off", "--port", "0", &listen]);
    }
    refused(&["agent", "--simulate", "1x cpu=1,memory=1Gi", &format!("--set=agent.metrics_listen={NOBODY}")]);
}

#[test]
fn clients_of_yarn_come_from_elsewhere_only_if_believed() {
    let faced = |face: &str, believed: &str| {
        let face = format!("--set=yarn.{face}_address={NOBODY}");
        // --insecure is about the gRPC server and the metrics.
        let args =
            ["serve", "yarn", "--insecure", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
        let words = [&args[..], &[face.as_str(), believed]].concat();
        let output = godel(&words.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(1), "{face}: {output:?}");
        shown(&output)
    };
    for face in ["client", "master", "admin", "rest"] {
        let text = faced(face, "--set=yarn.simple_auth=false");
        assert!(text.contains(NOBODY) && text.contains("yarn.simple_auth=true"), "{face}: {text}");
        assert!(!text.contains("WARN"), "{face}: {text}");
    }
    let text = faced("client", "--set=yarn.simple_auth=true");
    assert!(text.contains("WARN") && text.contains("clients of YARN without a token are believed"), "{text}");
    assert!(text.contains(&format!("cannot listen on {NOBODY}")), "{text}");
}

#[test]
fn a_start_that_others_can_reach_is_warned_of() {
    // The address cannot be bound, so each of them ends after its warning.
    for part in ["state", "dispatcher", "binder", "scheduler"] {
        let args = ["serve", part, "--insecure", "--listen", NOBODY, "--metrics-listen", "127.0.0.1:0"];
        let output = godel(&args.map(str::to_owned));
        let text = shown(&output);
        assert!(
            text.contains("WARN") && text.contains("other machines can reach this address"),
            "{part}: {text}"
        );
        assert!(text.contains(&format!("cannot listen on {NOBODY}")), "{part}: {text}");
    }
}

#[test]
fn an_https_address_needs_what_proves_who_calls() {
    let refused_with = |args: &[&str], words: &str| {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let output = godel(&args);
        let text = shown(&output);
        assert!(!output.status.success() && text.contains(words), "{args:?}: {text}");
    };
    refused_with(&["--address", "https://127.0.0.1:1", "status"], "knows no roots of the cluster");
    let refused = |args: &[&str]| refused_with(args, "has no certificate in godel-data/identity");
    refused(&["agent", "--simulate", "1x cpu=1,memory=1Gi", "--set=agent.client.state=https://127.0.0.1:1"]);
    for part in ["dispatcher", "binder", "scheduler"] {
        let state = format!("--set={part}.client.state=https://127.0.0.1:1");
        let mut args =
            vec!["serve", part, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", &state];
        if part == "scheduler" {
            args.push("--name=s1");
        }
        refused(&args);
    }
    let advertise = "--set=state.server.advertise=https://127.0.0.1:1";
    let state =
        ["serve", "state", "--tls=off", "--listen", "127.0.0.1:0", "--set=state.engine=memory", advertise];
    refused_with(&state, "says TLS, which the server does not speak");
}
