//! What tonic answers without words gets some: which method it was, and who serves it.

use std::sync::Arc;

use godel_membership::front_door::{ServingPart, part_of};
use http::Response;
use tonic::{Code, Status, body::Body};

use super::code_in;

/// The services of a server.
pub(in super::super) type Served = Arc<[&'static str]>;

/// The answer to a call of `path`, with words if it is an UNIMPLEMENTED without any.
pub(super) fn spoken(response: Response<Body>, path: &str, served: &Served) -> Response<Body> {
    // Known services answer by themselves, but for their unknown methods.
    let is_wordless = code_in(response.headers()) == Some(Code::Unimplemented)
        && response.headers().get(Status::GRPC_MESSAGE).is_none_or(|text| text.is_empty());
    if is_wordless { Status::unimplemented(words(path, served)).into_http() } else { response }
}

/// Why nobody serves `path` here.
fn words(path: &str, served: &[&'static str]) -> String {
    let shown: String = path.trim_start_matches('/').chars().take(200).collect();
    let service = shown.split('/').next().unwrap_or_default();
    if served.contains(&service) {
        return format!("{shown}: {service} has no such method");
    }
    match part_of(service) {
        Some(part) => format!(
            "{shown} is served by {}, not here; MemberService/ListMembers of state returns its address",
            named(part)
        ),
        None => format!("{shown}: no service of godel has this gRPC service"),
    }
}

/// A part in a sentence.
pub(in super::super) fn named(part: ServingPart) -> &'static str {
    match part {
        ServingPart::State => "state",
        ServingPart::Dispatcher => "the dispatcher",
        ServingPart::Binder => "the binder",
        ServingPart::Scheduler => "a scheduler",
        ServingPart::Yarn => "the YARN adapter",
        ServingPart::Rescheduler => "the rescheduler",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_who_serves_the_method() {
        let served = ["godel.v1.StateService"];
        assert_eq!(
            words("/godel.v1.UnitService/SubmitUnit", &served),
            "godel.v1.UnitService/SubmitUnit is served by the dispatcher, not here; \
             MemberService/ListMembers of state returns its address"
        );
        assert_eq!(
            words("/godel.v1.StateService/Wach", &served),
            "godel.v1.StateService/Wach: godel.v1.StateService has no such method"
        );
        assert_eq!(words("/a.B/C", &served), "a.B/C: no service of godel has this gRPC service");
        assert!(words(&"x".repeat(10_000), &served).len() < 300);
    }

    #[test]
    fn every_service_has_a_part() {
        use prost::Message as _;
        let files = prost_types::FileDescriptorSet::decode(godel_proto::FILE_DESCRIPTOR_SET).unwrap().file;
        for file in files {
            for service in &file.service {
                let name = format!("{}.{}", file.package(), service.name());
                assert!(part_of(&name).is_some(), "{name}");
            }
        }
    }
}
