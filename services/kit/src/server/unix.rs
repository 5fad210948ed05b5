//! A unix socket that a server listens on: for whoever may open its file, and nobody else.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::net::{UnixListener, UnixSocket, UnixStream};

/// Longest path of a socket, bytes: the kernel has room for 108 with the zero at the end.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Its owner alone may connect.
const MODE: u32 = 0o600;
/// Connections that wait to be accepted.
const BACKLOG: u32 = 1_024;
/// A process that takes so long to accept a connection is there all the same.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// Why there is no socket at a path.
#[derive(Debug, thiserror::Error)]
pub enum BadSocket {
    /// The kernel has no room for it.
    #[error(
        "the path of the socket {} has {} bytes, and a socket can have {SOCKET_PATH_BYTES_MAX}: choose a directory with a shorter path",
        .0.display(),
        .0.as_os_str().len()
    )]
    TooLong(PathBuf),
    /// Something else has that name.
    #[error("{} is not a socket: move it away", .0.display())]
    NoSocket(PathBuf),
    /// Another process listens there.
    #[error("another process serves at {}: end it, or choose another directory", .0.display())]
    InUse(PathBuf),
    /// It cannot be made.
    #[error("cannot listen on {}", path.display())]
    Bind {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A unix socket that is listened on. Its file goes with it.
#[derive(Debug)]
pub struct UnixDoor {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file.
    file: Option<(u64, u64)>,
}

impl UnixDoor {
    /// Listens at `path`, with mode 0600 from the first moment on. A socket that an earlier process has left there, and that nobody answers
    /// on, is replaced.
    ///
    /// # Errors
    /// The path is too long, something else is there, another process listens there, or the directory cannot be written.
    pub async fn bind(path: &Path) -> Result<Self, BadSocket> {
        if path.as_os_str().as_bytes().len() > SOCKET_PATH_BYTES_MAX {
            return Err(BadSocket::TooLong(path.to_owned()));
        }
        let failed = |source| BadSocket::Bind { path: path.to_owned(), source };
        let socket = UnixSocket::new_stream().map_err(failed)?;
        match socket.bind(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                remove_stale(path).await?;
                socket.bind(path).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
        // Nobody can connect before it listens.
        fs::set_permissions(path, Permissions::from_mode(MODE)).map_err(failed)?;
        let listener = socket.listen(BACKLOG).map_err(failed)?;
        Ok(Self { listener, path: path.to_owned(), file: file_of(path) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for UnixDoor {
    fn drop(&mut self) {
        // Another process may have taken the path.
        if self.file.is_some() && file_of(&self.path) == self.file {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn file_of(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Removes a socket that nobody answers on.
async fn remove_stale(path: &Path) -> Result<(), BadSocket> {
    let failed = |source| BadSocket::Bind { path: path.to_owned(), source };
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if !found.file_type().is_socket() {
        return Err(BadSocket::NoSocket(path.to_owned()));
    }
    match tokio::time::timeout(ANSWER_TIME, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed)
        }
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(Err(error)) => Err(failed(error)),
        Ok(Ok(_)) | Err(_) => Err(BadSocket::InUse(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_file_is_its_owners_and_goes_with_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("godel.sock");
        let door = UnixDoor::bind(&path).await.unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o777, 0o600);
        let second = UnixDoor::bind(&path).await.unwrap_err();
        assert!(matches!(second, BadSocket::InUse(_)), "{second}");
        drop(door);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn only_a_socket_that_nobody_answers_on_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("godel.sock");
        // As a process that was killed leaves it.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let door = UnixDoor::bind(&path).await.unwrap();
        // Whoever has taken the path keeps it.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        drop(door);
        let refused = UnixDoor::bind(&path).await.unwrap_err();
        assert!(matches!(refused, BadSocket::NoSocket(_)), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(UnixDoor::bind(&link).await, Err(BadSocket::NoSocket(_))));
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_is_refused_with_words() {
        let dir = tempfile::tempdir().unwrap();
        let room = SOCKET_PATH_BYTES_MAX - dir.path().as_os_str().len() - 1;
        let path = dir.path().join("s".repeat(room));
        UnixDoor::bind(&path).await.unwrap();
        let refused = UnixDoor::bind(&dir.path().join("s".repeat(room + 1))).await.unwrap_err().to_string();
        assert!(refused.contains("has 108 bytes") && refused.contains("shorter path"), "{refused}");
    }
}
