//! The server and the client over real connections.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use godel_domain::yarn_keys::{YARN_SECRET_LEN, YarnKey, YarnKeys};
use godel_hadoop::{
    Authentication, Caller, Exception, Identity, Limits, Protocol, Server,
    client::{CallError, Client, Shows},
    exception,
    token::{KeyedPasswords, issue},
    yarn::{AmrmTokenIdentifierProto, ApplicationAttemptIdProto, PriorityProto},
};
use godel_kit::CancellationToken;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
};

const ECHO: &str = "org.example.EchoPB";
const WITHIN: Duration = Duration::from_secs(30);

/// Runs a server until the test ends.
async fn serve(server: Server) -> (SocketAddr, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    godel_kit::task::spawn("test.server", server.serve(listener, stop.clone()));
    (address, stop)
}

/// Raises the number by one for users, and to the number of the attempt for masters.
async fn raise(caller: Caller, asked: PriorityProto) -> Result<PriorityProto, Exception> {
    let priority = match &caller.identity {
        Identity::User { effective, real: None } if effective == "anna" => asked.priority() + 1,
        Identity::User { effective, real } => {
            return Err(Exception::new(exception::ACCESS_CONTROL, format!("{effective} of {real:?}")));
        }
        Identity::Token(_) => {
            let token: AmrmTokenIdentifierProto = caller.identity.token()?;
            token.app_attempt_id.unwrap_or_default().attempt_id()
        }
    };
    Ok(PriorityProto { priority: Some(priority) })
}

fn echo() -> Protocol {
    Protocol::new(ECHO, 1).method("raise", raise).raw("same", |_, body| std::future::ready(Ok(body))).refuse(
        "lower",
        exception::YARN,
        "this server lowers nothing",
    )
}

fn user(effective: &str, real: Option<&str>) -> Shows {
    Shows::User { effective: effective.to_owned(), real: real.map(str::to_owned) }
}

fn refused(result: Result<PriorityProto, CallError>) -> Exception {
    match result {
        Err(CallError::Refused(exception)) => exception,
        other => panic!("{other:?}"),
    }
}

fn number(priority: i32) -> PriorityProto {
    PriorityProto { priority: Some(priority) }
}

#[tokio::test]
async fn users_call_methods_and_are_told_what_is_wrong() {
    let (address, _stop) = serve(Server::new(Authentication::Simple).protocol(echo())).await;
    let mut anna = Client::connect(address, ECHO, 1, &user("anna", None), WITHIN).await.unwrap();
    for n in 0..3 {
        assert_eq!(anna.call::<_, PriorityProto>("raise", &number(n)).await.unwrap(), number(n + 1));
    }
    let lowered = refused(anna.call("lower", &number(1)).await);
    assert_eq!(lowered, Exception::new(exception::YARN, "this server lowers nothing"));
    let unknown = refused(anna.call("other", &number(1)).await);
    assert_eq!(unknown.class, "org.apache.hadoop.ipc.RpcNoSuchMethodException");
    assert_eq!(anna.call::<_, PriorityProto>("same", &number(9)).await.unwrap(), number(9));

    let mut proxy = Client::connect(address, ECHO, 1, &user("bob", Some("hive")), WITHIN).await.unwrap();
    assert_eq!(refused(proxy.call("raise", &number(1)).await).message, "bob of Some(\"hive\")");
    let mut other =
        Client::connect(address, "org.example.OtherPB", 1, &user("anna", None), WITHIN).await.unwrap();
    assert!(refused(other.call("raise", &number(1)).await).message.contains("org.example.EchoPB"));
    let mut newer = Client::connect(address, ECHO, 2, &user("anna", None), WITHIN).await.unwrap();
    assert!(refused(newer.call("raise", &number(1)).await).class.ends_with("VersionMismatch"));
}

#[tokio::test]
async fn masters_are_known_by_their_tokens() {
    let key = |id| YarnKey { id, secret: [9; YARN_SECRET_LEN], from_ms: 0 };
    let (keys, watched) = watch::channel(YarnKeys { name: "amrm".to_owned(), keys: vec![key(1)] });
    let passwords = KeyedPasswords::<AmrmTokenIdentifierProto>::new(watched);
    let (address, _stop) =
        serve(Server::new(Authentication::Token(Arc::new(passwords))).protocol(echo())).await;
    let attempt = ApplicationAttemptIdProto { attempt_id: Some(42), application_id: None };
    let said = AmrmTokenIdentifierProto { app_attempt_id: Some(attempt), key_id: None };
    let token = issue(said, &key(1), "");
    let mut master = Client::connect(address, ECHO, 1, &Shows::Token(token.clone()), WITHIN).await.unwrap();
    assert_eq!(master.call::<_, PriorityProto>("raise", &number(0)).await.unwrap(), number(42));

    let mut forged = token.clone();
    forged.password = Bytes::from_static(&[0; 20]);
    let refusal = Client::connect(address, ECHO, 1, &Shows::Token(forged), WITHIN).await.unwrap_err();
    assert!(refusal.to_string().contains("the password of the token is wrong"), "{refusal}");
    keys.send_replace(YarnKeys { name: "amrm".to_owned(), keys: vec![key(2)] });
    let refusal = Client::connect(address, ECHO, 1, &Shows::Token(token), WITHIN).await.unwrap_err();
    assert!(refusal.to_string().contains("key 1 of this YARN_AM_RM_TOKEN token is not in use"), "{refusal}");
    let mut simple = Client::connect(address, ECHO, 1, &user("anna", None), WITHIN).await.unwrap();
    assert!(refused(simple.call("raise", &number(1)).await).message.contains("Available:[TOKEN]"));
    assert_eq!(master.call::<_, PriorityProto>("raise", &number(0)).await.unwrap(), number(42), "it stays");
}

/// What the server says until it closes the connection.
async fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    // A connection that is reset is closed as well.
    let _closed = stream.read_to_end(&mut said).await;
    said
}

#[tokio::test]
async fn connections_end_at_their_limits() {
    let limits = Limits {
        handshake: Duration::from_millis(100),
        message_bytes: 1024,
        all_messages_bytes: 1024,
        ..Limits::default()
    };
    let (address, _stop) = serve(Server::new(Authentication::Simple).protocol(echo()).limits(limits)).await;
    assert!(
        rest(TcpStream::connect(address).await.unwrap()).await.is_empty(),
        "it says nothing for too long"
    );
    let mut other = TcpStream::connect(address).await.unwrap();
    other.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(rest(other).await.is_empty());
    let mut long = TcpStream::connect(address).await.unwrap();
    long.write_all(b"hrpc\x09\0\0\xff\xff\xff\xff").await.unwrap();
    let said = rest(long).await;
    assert!(String::from_utf8_lossy(&said).contains("a message of 4294967295 bytes is longer than the 1024"));
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"hrpc\x09\0\0\0\0\x01\0half").await.unwrap();
    assert!(rest(slow).await.is_empty());
}

#[tokio::test]
async fn a_message_ends_in_time_though_its_client_may_be_silent_for_longer() {
    let limits = Limits {
        message: Duration::from_millis(100),
        idle: Duration::from_secs(3_600),
        handshake: Duration::from_secs(3_600),
        ..Limits::default()
    };
    let (address, _stop) = serve(Server::new(Authentication::Simple).protocol(echo()).limits(limits)).await;
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"hrpc\x09\0\0").await.unwrap();
    tokio::task::yield_now().await;
    // The server waits for a message already, for as long as a client may be silent.
    slow.write_all(b"\0\0\x01\0half").await.unwrap();
    assert!(tokio::time::timeout(WITHIN, rest(slow)).await.expect("the connection ends").is_empty());
}

#[tokio::test]
async fn idle_connections_make_room_for_new_ones() {
    let limits = Limits { connections: 20, ..Limits::default() };
    let (address, _stop) = serve(Server::new(Authentication::Simple).protocol(echo()).limits(limits)).await;
    let anna = user("anna", None);
    let connect = || Client::connect(address, ECHO, 1, &anna, WITHIN);
    let mut first = connect().await.unwrap();
    assert_eq!(first.call::<_, PriorityProto>("raise", &number(1)).await.unwrap(), number(2));
    // Connections that say what they speak, and no more.
    let mut flood = Vec::new();
    for _ in 0..200 {
        let mut one = TcpStream::connect(address).await.unwrap();
        // It may have been closed already.
        let _closed = one.write_all(b"hrpc\x09\0\0").await;
        flood.push(one);
    }
    let mut new = connect().await.unwrap();
    assert_eq!(new.call::<_, PriorityProto>("raise", &number(1)).await.unwrap(), number(2));
    assert_eq!(first.call::<_, PriorityProto>("raise", &number(1)).await.unwrap(), number(2), "it stays");
}

#[tokio::test]
async fn announced_bytes_take_no_room_before_they_arrive() {
    let limits = Limits { message_bytes: 1 << 20, all_messages_bytes: 2 << 20, ..Limits::default() };
    let (address, _stop) = serve(Server::new(Authentication::Simple).protocol(echo()).limits(limits)).await;
    let mut client = Client::connect(address, ECHO, 1, &user("anna", None), WITHIN).await.unwrap();
    let mut announced = Vec::new();
    for _ in 0..12 {
        let mut one = Client::connect(address, ECHO, 1, &user("anna", None), WITHIN).await.unwrap();
        assert_eq!(one.call::<_, PriorityProto>("raise", &number(1)).await.unwrap(), number(2));
        let mut stream = one.into_stream();
        stream.write_all(&[&(1_u32 << 20).to_be_bytes()[..], &[7; 1024]].concat()).await.unwrap();
        announced.push(stream);
    }
    assert_eq!(client.call::<_, PriorityProto>("raise", &number(1)).await.unwrap(), number(2));
}

#[tokio::test]
async fn calls_of_one_connection_are_limited_and_end_with_the_server() {
    let (most, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    // Calls that have begun, and those that have not ended.
    let (counts, mut counted) = watch::channel((0, 0));
    let (counts, highest, gate) = (Arc::new(counts), Arc::clone(&most), Arc::clone(&go));
    let protocol = Protocol::new(ECHO, 1).raw("wait", move |_, body| {
        let (counts, most, gate) = (Arc::clone(&counts), Arc::clone(&highest), Arc::clone(&gate));
        async move {
            counts.send_modify(|(begun, running)| (*begun, *running) = (*begun + 1, *running + 1));
            most.fetch_max(counts.borrow().1, Ordering::SeqCst);
            gate.notified().await;
            counts.send_modify(|(_, running)| *running -= 1);
            Ok(body)
        }
    });
    let limits = Limits { calls_per_connection: 2, ..Limits::default() };
    let (address, stop) = serve(Server::new(Authentication::Simple).protocol(protocol).limits(limits)).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    // A user `a`, and five calls of `wait` with empty requests, in one write.
    let mut said = b"hrpc\x09\0\0".to_vec();
    let header = |id: u8| vec![10, 8, 2, 16, 0, 24, id, 34, 0, 40, 0];
    let framed = |parts: &[&[u8]]| {
        let body = parts.concat();
        [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat()
    };
    said.extend(framed(&[&header(5), &[5, 18, 3, 10, 1, b'a']]));
    let name = ECHO.as_bytes();
    let method = [&[10, 4][..], b"wait", &[18, u8::try_from(name.len()).unwrap()], name, &[24, 1]].concat();
    for id in 0..5 {
        said.extend(framed(&[&header(id * 2), &[u8::try_from(method.len()).unwrap()], &method, &[0]]));
    }
    stream.write_all(&said).await.unwrap();
    for n in 0..4 {
        go.notify_one();
        let mut length = [0; 4];
        stream.read_exact(&mut length).await.unwrap();
        let mut answer = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap()];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer[..3], [u8::try_from(answer.len() - 2).unwrap(), 8, n]);
    }
    counted.wait_for(|(begun, _)| *begun == 5).await.unwrap();
    stop.cancel();
    go.notify_one();
    assert_eq!(rest(stream).await[5..7], [8, 4], "the last call is answered");
    assert_eq!(most.load(Ordering::SeqCst), 2);
}
