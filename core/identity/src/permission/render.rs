//! The table of methods for the documentation.

use super::{ObjectScope, PersonRole};
use crate::{
    names::Role,
    needs::{HTTP_NEEDS, NEEDS, Needs, YARN_NEEDS},
};

/// Which methods each role may call, and what each role may do, as Markdown.
pub fn render() -> String {
    let mut text = String::new();
    let mut last = String::new();
    for (path, needs) in NEEDS.iter().chain(YARN_NEEDS) {
        let (service, method) = parts_of(path);
        if service != last {
            text.push_str(&format!(
                "\n### {service}\n\n| method | least role | bound to | certificates |\n|---|---|---|---|\n"
            ));
            last = service;
        }
        text.push_str(&row(method, *needs));
    }
    text.push_str("\n### HTTP\n\n| page | least role | bound to | certificates |\n|---|---|---|---|\n");
    text.extend(HTTP_NEEDS.iter().map(|(page, needs)| row(page, *needs)));
    text
}

/// Service and method: `UnitService` and `SubmitUnit` of `/godel.v1.UnitService/SubmitUnit`.
fn parts_of(path: &str) -> (String, &str) {
    if let Some(rest) = path.strip_prefix("rest/") {
        return ("REST of the YARN adapter".to_owned(), rest);
    }
    let (service, method) = path.rsplit_once('/').unwrap_or(("", path));
    match service.strip_prefix("hadoop/") {
        Some(protocol) => (format!("{protocol} (Hadoop RPC)"), method),
        None => {
            let service = service.trim_start_matches('/');
            (service.strip_prefix("godel.v1.").unwrap_or(service).to_owned(), method)
        }
    }
}

fn row(what: &str, needs: Needs) -> String {
    format!("| `{what}` | {} | {} | {} |\n", least(needs), bound(needs), leaves(needs))
}

fn least(needs: Needs) -> &'static str {
    match needs {
        Needs::Anyone => "none",
        Needs::Roles(_) | Needs::Master => "-",
        Needs::Identified => PersonRole::Viewer.as_str(),
        Needs::Person(least, _) | Needs::PersonOr(least, _, _) => least.as_str(),
    }
}

fn bound(needs: Needs) -> &'static str {
    match needs.of_persons() {
        Some((_, ObjectScope::Namespace)) => "namespace",
        Some((_, ObjectScope::Sight)) => "sight",
        Some((_, ObjectScope::Own)) => "itself",
        Some((_, ObjectScope::Application)) => "own applications",
        Some((_, ObjectScope::Cluster)) | None => "",
    }
}

fn leaves(needs: Needs) -> String {
    match needs.of_leaves() {
        None if needs == Needs::Anyone => "none".to_owned(),
        None => "all".to_owned(),
        Some(_) if needs == Needs::Master => "token of a master".to_owned(),
        Some(roles) if roles.len() == Role::ALL.len() => "all".to_owned(),
        Some(roles) => roles.iter().map(|role| role.as_str()).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_has_its_row() {
        let text = render();
        assert_eq!(
            text.lines().filter(|line| line.starts_with("| `")).count(),
            NEEDS.len() + YARN_NEEDS.len() + HTTP_NEEDS.len()
        );
        for row in [
            "\n### UnitService\n\n",
            "| `SubmitUnit` | user | namespace | yarn |\n",
            "| `ListTokens` | viewer | itself |  |\n",
            "| `Txn` | - |  | dispatcher, binder, rescheduler, yarn |\n",
            "| `RenewIdentity` | - |  | all |\n",
            "| `ListMembers` | viewer |  | all |\n",
            "### ApplicationClientProtocol (Hadoop RPC)\n\n",
            "| `submitApplication` | user | own applications |  |\n",
            "| `allocate` | - |  | token of a master |\n",
            "| `PUT /ws/v1/cluster/apps/ID/state` | user | own applications |  |\n",
            "| `ListUnits` | viewer | sight |  |\n",
            "| `POST /policies/{name}/run` | operator |  |  |\n",
            "### grpc.health.v1.Health\n\n",
            "| `Check` | none |  | none |\n",
        ] {
            assert!(text.contains(row), "{row}: {text}");
        }
    }
}
