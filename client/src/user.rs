//! Who runs this process: the default owner of what it submits.

use godel_domain::{budget_spec::NAMESPACE_DEFAULT, names};
use godel_identity::caller::ADMIN;
use godel_proto::v1;
use rustix::process::getuid;

use crate::client::Client;

/// Users of this machine.
const USERS: &str = "/etc/passwd";

/// The name of the user who runs this process; its number where it has no name.
pub fn name() -> String {
    let uid = getuid().as_raw();
    let users = std::fs::read_to_string(USERS).unwrap_or_default();
    // Users of a directory service are not in the file.
    let named = named_in(&users, uid).map(str::to_owned).or_else(|| godel_kit::config::env("USER"));
    named.filter(|name| is_owner(name)).unwrap_or_else(|| uid.to_string())
}

/// The owner of what is submitted by a client and names none: the principal that calls, and for the administrator, who may be several people, the user who
/// runs this process.
pub fn default_owner(client: &Client) -> String {
    let person = client.directory().config().security.person();
    person.filter(|person| person != ADMIN).unwrap_or_else(name)
}

/// The namespace that is meant: the given one, or where that is empty the default one of the principal that calls.
pub async fn namespace(client: &Client, given: &str) -> String {
    let default = || NAMESPACE_DEFAULT.to_owned();
    if !given.is_empty() {
        return given.to_owned();
    }
    if client.directory().config().security.person().is_none() {
        return default();
    }
    // What does not answer this does not answer the call that follows, which says so.
    let answer = client.read(async || client.identities().who_am_i(v1::WhoAmIRequest {}).await).await;
    let own = answer.ok().and_then(|answer| Some(answer.into_inner().principal?.default_namespace));
    own.filter(|namespace| !namespace.is_empty()).unwrap_or_else(default)
}

/// The name of a user by number: `name:password:number:…` in each line.
fn named_in(users: &str, uid: u32) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

fn is_owner(name: &str) -> bool {
    !name.is_empty() && names::text(name, names::NAME_LEN_MAX).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_number() {
        let users = "root:x:0:0:root:/root:/bin/sh\nbroken\nalice:x:1000:100::/home/alice:/bin/sh\n";
        assert_eq!(named_in(users, 0), Some("root"));
        assert_eq!(named_in(users, 1_000), Some("alice"));
        assert_eq!(named_in(users, 100), None);
        assert!(is_owner(&name()));
    }
}
