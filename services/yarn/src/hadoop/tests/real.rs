//! Hadoop's own clients in front of the faces: `make test-yarn` brings them there and runs this test.

use std::process::Stdio;

use super::*;

/// Where the clients are (`integration-tests/yarn/clients.py` says what has to be there).
const CLIENTS: &str = "GODEL_YARN_CLIENTS";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Java and Hadoop's clients: make test-yarn"]
async fn hadoops_own_clients_are_served() {
    let clients = std::env::var_os(CLIENTS).expect("make test-yarn sets the folder of the clients");
    let rig = Rig::new(FaceSettings::default()).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../integration-tests/yarn/clients.py");
    let mut running = tokio::process::Command::new("python3");
    let running = running
        .arg(script)
        .arg("run")
        .args(["--client", &rig.client_at.to_string()])
        .args(["--scheduler", &rig.master_at.to_string()])
        .args(["--admin", &rig.admin_at.to_string()])
        .args(["--stand-in", "--clients"])
        .arg(clients)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .status();
    let status = tokio::time::timeout(Duration::from_secs(600), running).await.unwrap().unwrap();
    assert!(status.success(), "see above what the clients said");
}
