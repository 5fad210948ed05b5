//! TLS, certificates of clients, and users.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use godel_etcd::{
    CallError, CertificateFiles, Client, ClientConfig, ClientError, Etcd, RangeRequest, TlsFiles, User,
};

use godel_testkit::skip;

use crate::client::start;

fn read(client: &dyn Etcd) -> Result<(), CallError> {
    client.range(RangeRequest { from: "k".into(), to: "l".into(), limit: 1, keys_only: false }).map(drop)
}

/// Runs openssl in `dir`; why not, where it cannot be.
fn openssl(dir: &Path, args: &str) -> Result<(), String> {
    let output = Command::new("openssl").args(args.split(' ')).current_dir(dir).output();
    let output = output.map_err(|error| format!("openssl: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("openssl {args}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Makes a CA: `<name>.pem` and its key.
fn make_ca(dir: &Path, name: &str) -> Result<(), String> {
    openssl(
        dir,
        &format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout {name}.key -out {name}.pem"
        ),
    )
}

/// Has `ca` sign a certificate for the loopback, of a server and a client: `<name>.pem` and its key.
fn issue(dir: &Path, ca: &str, name: &str) -> Result<(), String> {
    fs::write(dir.join("ext"), "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        .unwrap();
    openssl(
        dir,
        &format!("req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"),
    )?;
    openssl(
        dir,
        &format!(
            "x509 -req -in {name}.csr -CA {ca}.pem -CAkey {ca}.key -CAcreateserial -days 2 -extfile ext -out {name}.pem"
        ),
    )
}

#[test]
fn tls_needs_the_right_roots_and_a_certificate_and_takes_new_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let made = ["one", "other"]
        .into_iter()
        .try_for_each(|name| make_ca(dir.path(), name))
        .and_then(|()| ["server", "client"].into_iter().try_for_each(|name| issue(dir.path(), "one", name)));
    if let Err(why) = made {
        return skip(why);
    }
    let set_roots = |name: &str| {
        fs::copy(file(&format!("{name}.pem")), file("ca.pem")).unwrap();
    };
    set_roots("one");
    let Some((mut processes, _dir)) = start(|config| {
        let files = [("cert-file", "server.pem"), ("key-file", "server.key"), ("trusted-ca-file", "ca.pem")];
        config.args.extend(files.map(|(flag, name)| format!("--{flag}={}", file(name).display())));
        config.args.push("--client-cert-auth".to_owned());
        config.tls = Some(tls(dir.path(), true));
    }) else {
        return;
    };
    let client = |with_own| {
        let tls = Some(tls(dir.path(), with_own));
        let endpoints = processes.endpoints();
        Client::start(&ClientConfig { endpoints, timeout: Duration::from_secs(2), tls, user: None }).unwrap()
    };
    let (proven, unproven) = (client(true), client(false));
    read(&proven).unwrap();
    let error = read(&unproven).unwrap_err();
    assert!(error.is_surely_not_done(), "{error}");
    // Roots that do not fit are said to be so; with the right ones again it works, without a restart.
    set_roots("other");
    processes.kill(0);
    assert!(read(&proven).is_err());
    processes.restart(0).unwrap();
    // etcd has read the other roots, too, and refuses the certificate of the client: either side is wrong.
    let start = Instant::now();
    loop {
        match read(&proven).unwrap_err() {
            CallError::Refused(why) if why.contains("no TLS with https://127.0.0.1") => break,
            error => assert!(start.elapsed() < Duration::from_secs(30), "{error}"),
        }
    }
    processes.kill(0);
    set_roots("one");
    processes.restart(0).unwrap();
    let start = Instant::now();
    while let Err(error) = read(&proven) {
        assert!(start.elapsed() < Duration::from_secs(30), "{error}");
    }
    let without = ClientConfig {
        endpoints: processes.endpoints(),
        timeout: Duration::from_secs(2),
        tls: None,
        user: None,
    };
    assert!(matches!(Client::start(&without), Err(ClientError::NoRoots(_))));
}

fn tls(dir: &Path, with_own: bool) -> TlsFiles {
    let own = CertificateFiles { certificate: dir.join("client.pem"), key: dir.join("client.key") };
    TlsFiles { roots: dir.join("ca.pem"), own: with_own.then_some(own) }
}

#[test]
fn users_have_a_password_and_get_another_token_when_theirs_is_gone() {
    let Some((mut processes, dir)) = start(|_| {}) else { return };
    let etcdctl = |args: &[&str]| {
        let output = Command::new("etcdctl")
            .arg(format!("--endpoints={}", processes.endpoints()[0]))
            .args(args)
            .env("ETCDCTL_API", "3")
            .output()
            .unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    etcdctl(&["user", "add", "root:secret"]);
    etcdctl(&["user", "grant-role", "root", "root"]);
    etcdctl(&["user", "add", "godel:pass word"]);
    etcdctl(&["role", "add", "godel"]);
    etcdctl(&["role", "grant-permission", "godel", "--prefix=true", "readwrite", "k"]);
    etcdctl(&["user", "grant-role", "godel", "godel"]);
    etcdctl(&["auth", "enable"]);
    let password_file = dir.path().join("password");
    fs::write(&password_file, "pass word\n").unwrap();
    let client = |user: Option<User>| {
        let endpoints = processes.endpoints();
        Client::start(&ClientConfig { endpoints, timeout: Duration::from_secs(5), tls: None, user }).unwrap()
    };
    let user = User { name: "godel".to_owned(), password_file: password_file.clone() };
    let known = client(Some(user.clone()));
    read(&known).unwrap();
    let outside = RangeRequest { from: "a".into(), to: "b".into(), limit: 1, keys_only: false };
    let error = (&known as &dyn Etcd).range(outside).unwrap_err();
    assert!(matches!(&error, CallError::Refused(why) if why.contains("permission denied")), "{error}");
    let error = read(&client(None)).unwrap_err();
    assert!(matches!(&error, CallError::Refused(why) if why.contains("set a user")), "{error}");
    fs::write(&password_file, "wrong\n").unwrap();
    let error = read(&client(Some(user.clone()))).unwrap_err();
    assert!(matches!(&error, CallError::Refused(why) if why.contains("password")), "{error}");
    let nobody = User { password_file: "/no/such/file".into(), ..user };
    assert!(read(&client(Some(nobody))).unwrap_err().to_string().contains("/no/such/file"));
    // Tokens are in the memory of the member.
    fs::write(&password_file, "pass word\n").unwrap();
    processes.restart(0).unwrap();
    let start = Instant::now();
    while let Err(error) = read(&known) {
        assert!(error.is_surely_not_done() || start.elapsed() < Duration::from_secs(30), "{error}");
        assert!(start.elapsed() < Duration::from_secs(30), "{error}");
    }
}
