use super::*;

#[tokio::test]
async fn errors_name_who_does_not_answer() {
    let client = Client::new("http://127.0.0.1:7700").unwrap();
    let failed = |leader: Option<&str>, status: Status| {
        let failed = FailedCall { leader: leader.map(str::to_owned), status };
        let failure = client.explain_leader("binder", failed);
        (failure.code, failure.to_string())
    };
    let (code, said) = failed(Some("http://10.0.0.7:7702"), Status::unavailable("connection refused"));
    assert_eq!(code, Code::Unreachable);
    assert!(said.starts_with("binder at http://10.0.0.7:7702 does not answer: connection refused"), "{said}");
    assert!(!said.contains("127.0.0.1:7700\n"), "{said}");
    let (code, said) = failed(None, Status::unavailable("nobody holds lease binder"));
    assert_eq!(code, Code::Unreachable);
    assert!(said.starts_with("no binder leads; state at http://127.0.0.1:7700 answers"), "{said}");
    let (_, said) = failed(None, Status::unavailable("connection refused"));
    assert!(said.starts_with("state at http://127.0.0.1:7700 does not answer: connection refused"), "{said}");
    let (code, said) = failed(Some("http://b"), Status::not_found("no unit `x`"));
    assert_eq!((code, said.as_str()), (Code::NotFound, "no unit `x`"));
    let (code, said) = failed(Some("http://b"), Status::deadline_exceeded("slow"));
    assert_eq!((code, said.as_str()), (Code::Timeout, "binder at http://b: timeout: slow"));
}
