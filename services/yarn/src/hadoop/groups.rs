//! Groups of users, as this machine knows them: what `yarn rmadmin -getGroups` shows.

/// The groups of a user by the texts of `/etc/passwd` and `/etc/group`: the primary one first. `None`: there is no such user.
pub(crate) fn of_user(user: &str, passwd: &str, group: &str) -> Option<Vec<String>> {
    let primary = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(user)).then(|| fields.nth(2).unwrap_or_default())
    })?;
    let mut groups = Vec::new();
    for line in group.lines() {
        let mut fields = line.split(':');
        let (Some(name), Some(_), Some(id)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let is_member = fields.next().unwrap_or_default().split(',').any(|member| member == user);
        if id == primary {
            groups.insert(0, name.to_owned());
        } else if is_member {
            groups.push(name.to_owned());
        }
    }
    Some(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_primary_group_stands_first() {
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:1000:100::/home/ann:/bin/sh\nbroken\n";
        let group = "root:x:0:\ndev:x:7:bob,ann\nusers:x:100:\nbroken\nops:x:8:anna\n";
        assert_eq!(of_user("ann", passwd, group).unwrap(), ["users", "dev"]);
        assert_eq!(of_user("anna", passwd, group), None);
    }
}
