//! Who runs this process: the default owner of what it submits.

use godel_domain::names;
use godel_identity::caller::ADMIN;
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
