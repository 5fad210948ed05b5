use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::common::{RpcResponseHeaderProto, UserInformationProto};

const SECRET: [u8; 20] = [7; 20];

#[derive(Debug)]
struct OneToken;

impl crate::Passwords for OneToken {
    fn password(&self, identifier: &[u8]) -> Result<[u8; 20], Exception> {
        if identifier == b"who" {
            return Ok(SECRET);
        }
        Err(Exception::new(exception::INVALID_TOKEN, "no such token"))
    }
}

fn session(authentication: Authentication) -> HadoopSession {
    HadoopSession::new(authentication, ([127, 0, 0, 1], 1).into(), "nonce".to_owned())
}

fn token() -> Authentication {
    Authentication::Token(Arc::new(OneToken))
}

/// A message as the client makes it, without the length before it.
fn sent(id: i32, message: &impl prost::Message) -> Bytes {
    let client = Bytes::from_static(b"0123456789abcdef");
    frame::request(id, &client, |out| frame::put_delimited(out, message)).slice(4..)
}

fn context(effective: &str, real: Option<&str>) -> Bytes {
    let user = UserInformationProto {
        effective_user: Some(effective.to_owned()).filter(|name| !name.is_empty()),
        real_user: real.map(str::to_owned),
    };
    sent(CONTEXT_ID, &IpcConnectionContextProto { user_info: Some(user), protocol: None })
}

/// Header and body of an answer.
fn read(answer: &Bytes) -> (RpcResponseHeaderProto, Bytes) {
    let mut rest = answer.slice(4..);
    let header = frame::take_message(&mut rest).unwrap();
    (header, frame::take_delimited(&mut rest).unwrap_or_default())
}

fn reply(step: Result<Step, FatalCall>) -> RpcSaslProto {
    let Ok(Step::Reply(answer)) = step else { panic!("{step:?}") };
    RpcSaslProto::decode(read(&answer).1).unwrap()
}

/// Class and message of the exception that ends a connection.
fn refusal(step: Result<Step, FatalCall>) -> (String, String) {
    let Err(FatalCall(answer)) = step else { panic!("{step:?}") };
    let header = read(&answer).0;
    assert_eq!(header.status(), RpcStatusProto::Fatal);
    (header.exception_class_name().to_owned(), header.error_msg().to_owned())
}

fn negotiate() -> Bytes {
    sent(SASL_ID, &RpcSaslProto { state: SaslState::Negotiate.into(), ..RpcSaslProto::default() })
}

fn initiate(method: &str, token: Option<String>) -> Bytes {
    let auths = vec![SaslAuth { method: method.to_owned(), ..SaslAuth::default() }];
    let token = token.map(Bytes::from);
    sent(
        SASL_ID,
        &RpcSaslProto { state: SaslState::Initiate.into(), token, auths, ..RpcSaslProto::default() },
    )
}

#[test]
fn answers_are_the_bytes_that_clients_read() {
    let head = Head { call_id: SASL_ID, ..Head::none() };
    let expected =
        [&[0, 0, 0, 16, 12, 8, 0xdf, 0xff, 0xff, 0xff, 0x0f, 16, 0, 24, 9, 64, 1], &[2, b'h', b'i'][..]];
    assert_eq!(frame::success(&head, b"hi"), expected.concat());
    let client_id = Bytes::from_static(b"me");
    let head = Head { call_id: 5, client_id, retry_count: 0 };
    let error = Exception::new("C", "m");
    let (status, code) = (RpcStatusProto::Error, RpcErrorCodeProto::ErrorApplication);
    let expected =
        [0, 0, 0, 21, 20, 8, 5, 16, 1, 24, 9, 34, 1, b'C', 42, 1, b'm', 48, 1, 58, 2, b'm', b'e', 64, 0];
    assert_eq!(frame::failure(&head, status, code, &error)[..], expected);
}

#[test]
fn a_simple_client_is_who_it_says() {
    let mut simple = session(Authentication::Simple);
    simple.on_preamble(*b"hrpc\x09\0\0").unwrap();
    assert!(matches!(simple.on_frame(context("anna", Some("hive"))), Ok(Step::Wait)));
    let header = RequestHeaderProto {
        method_name: "m".to_owned(),
        declaring_class_protocol_name: "P".to_owned(),
        client_protocol_version: 1,
    };
    let client = Bytes::from_static(b"0123456789abcdef");
    let call = frame::request(0, &client, |out| {
        frame::put_delimited(out, &header);
        frame::put_delimited(out, &UserInformationProto::default());
    });
    let Ok(Step::Call(call)) = simple.on_frame(call.slice(4..)) else { panic!() };
    let identity = Identity::User { effective: "anna".to_owned(), real: Some("hive".to_owned()) };
    assert_eq!((call.caller.identity, call.method.as_str(), call.body.len()), (identity, "m", 0));
    assert!(matches!(simple.on_frame(sent(PING_ID, &header)), Ok(Step::Wait)));
}

#[test]
fn a_client_with_a_token_is_its_identifier() {
    let mut session = session(token());
    session.on_preamble(*b"hrpc\x09\0\xdf").unwrap();
    let offer = reply(session.on_frame(negotiate()));
    let methods: Vec<&str> = offer.auths.iter().map(|auth| auth.method.as_str()).collect();
    assert_eq!((offer.state(), methods), (SaslState::Negotiate, vec!["TOKEN"]));
    let question = offer.auths[0].challenge();
    let (said, expected) = digest::respond(question, b"who", &SECRET, "c").unwrap();
    let answer = reply(session.on_frame(initiate("TOKEN", Some(said))));
    assert_eq!((answer.state(), answer.token()), (SaslState::Success, expected.as_bytes()));
    assert!(!session.is_open());
    session.on_frame(context("", None)).unwrap();
    let SessionStage::Open(caller) = session.stage else { panic!() };
    assert_eq!(caller.identity, Identity::Token(Bytes::from_static(b"who")));
}

#[test]
fn clients_without_the_right_token_are_refused() {
    let opened = |authentication| {
        let mut session = session(authentication);
        session.on_preamble(*b"hrpc\x09\0\xdf").unwrap();
        session
    };
    let said = |who: &[u8], secret: &[u8]| {
        Some(digest::respond(digest::challenge("nonce").as_bytes(), who, secret, "c").unwrap().0)
    };
    let (class, _) = refusal(opened(token()).on_frame(initiate("TOKEN", said(b"eve", &SECRET))));
    assert_eq!(class, exception::INVALID_TOKEN);
    let (class, message) = refusal(opened(token()).on_frame(initiate("TOKEN", said(b"who", b"guess"))));
    assert_eq!(class, exception::ACCESS_CONTROL);
    assert!(message.contains("the password of the token is wrong"), "{message}");
    let (_, message) = refusal(opened(token()).on_frame(initiate("SIMPLE", None)));
    assert!(message.contains("SIMPLE authentication is not served here"), "{message}");
    let (_, message) = refusal(opened(token()).on_frame(initiate("KERBEROS", None)));
    assert!(message.contains("set hadoop.security.authentication to simple"), "{message}");
    let (_, message) = refusal(opened(token()).on_frame(context("anna", None)));
    assert!(message.contains("must be authenticated first"), "{message}");
    let wrap = sent(SASL_ID, &RpcSaslProto { state: SaslState::Wrap.into(), ..RpcSaslProto::default() });
    let (_, message) = refusal(opened(token()).on_frame(wrap));
    assert!(message.contains("set hadoop.rpc.protection to authentication"), "{message}");
}

#[test]
fn a_client_with_other_tokens_may_be_simple() {
    let mut session = session(Authentication::TokenOrSimple(Arc::new(OneToken)));
    session.on_preamble(*b"hrpc\x09\0\xdf").unwrap();
    assert_eq!(reply(session.on_frame(negotiate())).auths.len(), 2);
    assert!(matches!(session.on_frame(initiate("SIMPLE", None)), Ok(Step::Wait)));
    session.on_frame(context("anna", None)).unwrap();
    assert!(session.is_open());
}

#[test]
fn connections_that_begin_otherwise_end_with_a_reason() {
    let begin = |bytes, authentication| session(authentication).on_preamble(bytes);
    assert!(matches!(begin(*b"GET / H", token()), Err(None)));
    let refused = |begun: Result<(), Option<FatalCall>>| refusal(Err(begun.unwrap_err().unwrap()));
    assert!(refused(begin(*b"hrpc\x08\0\0", token())).0.ends_with("VersionMismatch"));
    assert!(refused(begin(*b"hrpc\x09\0\0", token())).1.contains("Available:[TOKEN]"));
    assert!(refused(begin(*b"hrpc\x09\0\x51", token())).1.contains("no authentication 0x51"));
    let mut nobody = session(Authentication::Simple);
    nobody.on_preamble(*b"hrpc\x09\0\0").unwrap();
    assert!(refusal(nobody.on_frame(context("", None))).1.contains("does not say which user"));
}

proptest! {
    /// Whatever comes, at whatever time: it is answered or refused, and never opens a connection without the token.
    #[test]
    fn any_messages_are_answered_or_refused(
        frames in prop::collection::vec(prop_oneof![
            any::<Vec<u8>>().prop_map(Bytes::from),
            (any::<i32>(), any::<Vec<u8>>()).prop_map(|(id, body)| {
                frame::request(id, &Bytes::new(), |out| out.extend_from_slice(&body)).slice(4..)
            }),
            any::<Vec<u8>>().prop_map(|body| {
                frame::request(SASL_ID, &Bytes::new(), |out| {
                    prost::encoding::encode_varint(body.len() as u64, out);
                    out.extend_from_slice(&body);
                }).slice(4..)
            }),
            (0..6_i32, "[A-Z]{0,6}|TOKEN|SIMPLE", prop::option::of("[a-z=\",/]{0,40}")).prop_map(|(state, method, token)| {
                let auths = vec![SaslAuth { method, ..SaslAuth::default() }];
                sent(SASL_ID, &RpcSaslProto { version: None, state, token: token.map(Bytes::from), auths })
            }),
            Just(context("anna", None)),
        ], 0..12)
    ) {
        let mut session = session(token());
        session.on_preamble(*b"hrpc\x09\0\xdf").unwrap();
        for frame in frames {
            if session.on_frame(frame).is_err() {
                break;
            }
        }
        prop_assert!(!session.is_open());
    }
}
