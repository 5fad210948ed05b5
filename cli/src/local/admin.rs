//! Whoever starts state on this machine administers the cluster, and lets the parts of this process join.

use std::{
    fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use godel_client::{
    client::Client,
    exit::{Code, Failure},
};
use godel_kit::{member::GivenToken, security::Role};
use godel_proto::v1;
use tonic::Code as RpcCode;

/// The administrator, at the unix socket of state.
pub(super) struct LocalAdmin {
    pub(super) client: Client,
}

impl LocalAdmin {
    /// # Errors
    /// The path of the socket cannot be used.
    pub(super) fn new(socket: &Path) -> Result<Self, Failure> {
        let socket = std::path::absolute(socket)
            .map_err(|error| Failure::failed(format!("{}: {error}", socket.display())))?;
        Ok(Self { client: Client::patient(&format!("unix:{}", socket.display()))? })
    }

    /// A join token for a part of this process. Its name may be in use by the part of an earlier run, which has ended: the data directory is one
    /// process's alone.
    ///
    /// # Errors
    /// State refuses.
    pub(super) async fn token(&self, role: Role, name: &str) -> Result<GivenToken, Failure> {
        let mut identities = self.client.identities();
        let known = v1::AllowNameRequest { identity: format!("{role}/{name}") };
        match identities.allow_name(known).await {
            Err(status) if status.code() != RpcCode::NotFound => return Err(self.client.explain(status)),
            Ok(_) | Err(_) => {}
        }
        let request = v1::CreateJoinTokenRequest {
            role: role.to_string(),
            names: if role == Role::Agent { name.to_owned() } else { "*".to_owned() },
            uses: 1,
            ..v1::CreateJoinTokenRequest::default()
        };
        let made = identities.create_join_token(request).await;
        made.map(|made| GivenToken::new(&made.into_inner().token))
            .map_err(|status| self.client.explain(status))
    }
}

/// A directory of this process's user alone, which is removed at the end: for the socket of a state that keeps nothing.
pub(super) struct PrivateDir(PathBuf);

impl PrivateDir {
    /// # Errors
    /// What the system refuses.
    pub(super) fn make() -> Result<Self, Failure> {
        let runtime = godel_kit::config::env("XDG_RUNTIME_DIR").map(PathBuf::from);
        let within = runtime.filter(|dir| dir.is_dir()).unwrap_or_else(std::env::temp_dir);
        let dir = within.join(format!("godel-{}", uuid::Uuid::new_v4().simple()));
        let made = fs::DirBuilder::new().mode(0o700).create(&dir);
        made.map(|()| Self(dir.clone())).map_err(|error| {
            Failure::new(
                Code::Failed,
                format!("a private directory cannot be made at {}: {error}", dir.display()),
            )
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // The system empties what is left in such places.
        let _ = fs::remove_dir_all(&self.0);
    }
}
