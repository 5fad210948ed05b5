//! Which RPCs there are, and which of them are streams, read from the descriptors: deadlines treat those differently.

use std::{collections::HashMap, sync::LazyLock};

use prost::Message as _;
use prost_types::FileDescriptorSet;

/// All methods by path.
static METHODS: LazyLock<HashMap<String, MethodShape>> = LazyLock::new(|| {
    let mut methods = HashMap::new();
    for encoded in [
        godel_proto::FILE_DESCRIPTOR_SET,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
    ] {
        let files = FileDescriptorSet::decode(encoded).expect("descriptors are compiled in").file;
        for file in files {
            for service in &file.service {
                for method in &service.method {
                    let shape = match (method.client_streaming(), method.server_streaming()) {
                        (true, _) => MethodShape::ClientStream,
                        (false, true) => MethodShape::ServerStream,
                        (false, false) => MethodShape::Unary,
                    };
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    methods.insert(path, shape);
                }
            }
        }
    }
    methods
});

/// Whether a method streams in either direction; unknown methods do not.
pub(crate) fn is_stream(service: &str, method: &str) -> bool {
    is_stream_path(&format!("/{service}/{method}"))
}

/// The same by the path of the request.
pub(crate) fn is_stream_path(path: &str) -> bool {
    shape(path) != MethodShape::Unary
}

/// Whether there is a method at `path`.
pub(crate) fn is_known(path: &str) -> bool {
    METHODS.contains_key(path)
}

/// Who sends more than one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MethodShape {
    /// Nobody, or nobody knows the method.
    Unary,
    /// The server alone.
    ServerStream,
    /// The client, and perhaps the server.
    ClientStream,
}

/// Shape of the method at `path`.
pub(crate) fn shape(path: &str) -> MethodShape {
    METHODS.get(path).copied().unwrap_or(MethodShape::Unary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptors_tell_streams() {
        assert!(is_stream("godel.v1.StateService", "Watch"));
        assert!(is_stream("godel.v1.BindService", "Decide"));
        assert!(is_stream("grpc.health.v1.Health", "Watch"));
        assert!(is_stream("grpc.reflection.v1alpha.ServerReflection", "ServerReflectionInfo"));
        assert!(!is_stream("godel.v1.UnitService", "SubmitUnit"));
        assert!(!is_stream("grpc.health.v1.Health", "Check"));
        assert_eq!(shape("/godel.v1.StateService/Watch"), MethodShape::ServerStream);
        assert_eq!(shape("/godel.v1.NodeService/Session"), MethodShape::ClientStream);
        assert_eq!(shape("/godel.v1.UnitService/SubmitUnit"), MethodShape::Unary);
        assert_eq!(shape("/made.up/Method"), MethodShape::Unary);
        assert!(is_known("/godel.v1.UnitService/SubmitUnit") && is_known("/godel.v1.StateService/Watch"));
        assert!(!is_known("/godel.v1.UnitService/MadeUp") && !is_known("/made.up/Method"));
    }
}
