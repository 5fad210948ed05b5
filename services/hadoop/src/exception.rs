//! Errors as Java exceptions: clients make an exception of the class by its name, and tell their users its message.

use std::borrow::Cow;

/// An exception of YARN without a class of its own.
pub const YARN: &str = "org.apache.hadoop.yarn.exceptions.YarnException";
/// The caller may not do this, or is not who it says.
pub const ACCESS_CONTROL: &str = "org.apache.hadoop.security.AccessControlException";
/// A token that was not made with a key of this server.
pub const INVALID_TOKEN: &str = "org.apache.hadoop.security.token.SecretManager$InvalidToken";
/// A request that cannot be read.
pub const BAD_REQUEST: &str = "org.apache.hadoop.ipc.RpcServerException";
/// Anything else that went wrong.
pub const IO: &str = "java.io.IOException";

/// An exception of a method or of the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{class}: {message}")]
pub struct Exception {
    /// Full name of the Java class.
    pub class: Cow<'static, str>,
    /// What people read: what went wrong, and what to do next.
    pub message: String,
}

impl Exception {
    /// An exception of this class.
    pub fn new(class: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { class: class.into(), message: message.into() }
    }
}
