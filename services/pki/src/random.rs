//! Random bytes of the system.

use ring::rand::{SecureRandom as _, SystemRandom};

/// The system gives no random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random bytes; keys and tokens cannot be made")]
pub struct NoRandomBytes;

/// `N` random bytes.
///
/// # Errors
/// [`NoRandomBytes`], as in a sandbox without `getrandom`.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], NoRandomBytes> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomBytes)?;
    Ok(bytes)
}
