//! Verbs that change the records of nodes, of one or of many at a time.

use std::time::Duration;

use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::Format,
};
use godel_proto::v1;

use crate::{
    args::node::{Changes, NamedNodes, Notice},
    command::each::{Done, each},
};

pub(super) async fn cordon(
    client: &Client,
    nodes: NamedNodes,
    cordoned: bool,
    format: Format,
) -> Result<(), Failure> {
    let request = v1::UpdateNodeRequest { cordoned: Some(cordoned), ..v1::UpdateNodeRequest::default() };
    let what = if cordoned { "cordoned" } else { "uncordoned" };
    update_all(client, nodes, &request, what, format).await.map(drop)
}

pub(super) async fn undrain(client: &Client, nodes: NamedNodes, format: Format) -> Result<(), Failure> {
    let request = v1::UpdateNodeRequest { undrain: true, ..v1::UpdateNodeRequest::default() };
    update_all(client, nodes, &request, "no longer drained", format).await.map(drop)
}

pub(super) async fn label(client: &Client, changes: Changes, format: Format) -> Result<(), Failure> {
    let (names, words) = split_words(&changes.words);
    let request = label_request(&words)?;
    let nodes = NamedNodes { names, selector: changes.selector };
    update_all(client, nodes, &request, "labelled", format).await.map(drop)
}

pub(super) async fn taint(client: &Client, changes: Changes, format: Format) -> Result<(), Failure> {
    let (names, words) = split_words(&changes.words);
    let request = taint_request(&words)?;
    let nodes = NamedNodes { names, selector: changes.selector };
    update_all(client, nodes, &request, "tainted", format).await.map(drop)
}

/// Deletes records of nodes on which nothing runs.
pub(super) async fn delete(client: &Client, names: &[String], format: Format) -> Result<(), Failure> {
    let deleted = each(format, "node", names, async |name| {
        let request = v1::DeleteNodeRequest { name };
        let mut nodes = client.nodes();
        let answer = nodes.delete_node(request).await.map_err(|status| not_found(client.explain(status)))?;
        Ok(Done::at("deleted", answer.into_inner().revision))
    });
    deleted.await.map(drop)
}

pub(super) async fn notice(client: &Client, wanted: Notice, format: Format) -> Result<(), Failure> {
    let Notice { nodes, reason, deadline } = wanted;
    let names = named(client, nodes).await?;
    let given = each(format, "node", &names, async |name| {
        let answer = give_notice(client, name, &reason, deadline).await.map_err(not_found)?;
        let name = answer.spec.and_then(|spec| spec.meta).map(|meta| meta.name);
        Ok(Done { name, ..Done::at("given notice", answer.revision) })
    });
    given.await.map(drop)
}

/// Gives notice of one node.
pub(crate) async fn give_notice(
    client: &Client,
    name: String,
    reason: &str,
    deadline: Duration,
) -> Result<v1::GiveNoticeResponse, Failure> {
    let deadline_in_ms = Some(u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX));
    let request = v1::GiveNoticeRequest { name, reason: reason.to_owned(), deadline_in_ms };
    let answer = client
        .read(async || {
            // The notice is idempotent but for the deadline, which moves by the time of the repetition.
            client.nodes().give_notice(request.clone()).await
        })
        .await?;
    Ok(answer.into_inner())
}

/// The names of named and selected nodes.
async fn named(client: &Client, nodes: NamedNodes) -> Result<Vec<String>, Failure> {
    let NamedNodes { mut names, selector } = nodes;
    if names.is_empty() && selector.is_empty() {
        return Err(Failure::usage("give node names or a label selector"));
    }
    if !selector.is_empty() {
        let selected = client.list_nodes(&selector).await?;
        if selected.is_empty() && names.is_empty() {
            return Err(Failure::new(Code::NotFound, "no node has these labels")
                .hint("`godel node list -o json` shows the labels of all nodes"));
        }
        names.extend(selected.into_iter().filter_map(|node| Some(node.spec?.meta?.name)));
    }
    Ok(names)
}

/// Makes the same change to every named or selected node, prints what changed, and returns the names of these nodes.
pub(super) async fn update_all(
    client: &Client,
    nodes: NamedNodes,
    request: &v1::UpdateNodeRequest,
    what: &'static str,
    format: Format,
) -> Result<Vec<String>, Failure> {
    let names = named(client, nodes).await?;
    each(format, "node", &names, async |name| {
        let asked = v1::UpdateNodeRequest { name, ..request.clone() };
        let answer = update(client, asked).await.map_err(not_found)?;
        let name = answer.spec.and_then(|spec| spec.meta).map(|meta| meta.name);
        let done = if answer.changed { Done::at(what, answer.revision) } else { Done::unchanged() };
        Ok(Done { name, ..done })
    })
    .await
}

/// Changes one node.
pub(crate) async fn update(
    client: &Client,
    request: v1::UpdateNodeRequest,
) -> Result<v1::UpdateNodeResponse, Failure> {
    let answer = client
        .read(async || {
            // The change is idempotent: it may be sent again after a lost answer.
            client.nodes().update_node(request.clone()).await
        })
        .await?;
    Ok(answer.into_inner())
}

pub(super) fn not_found(failure: Failure) -> Failure {
    match failure.code {
        Code::NotFound => failure.hint("`godel node list` shows what there is"),
        _ => failure,
    }
}

/// Splits words into the names of nodes and, from the first word that is a change, the changes.
fn split_words(words: &[String]) -> (Vec<String>, Vec<String>) {
    let is_change = |word: &String| word.contains(['=', ':']) || word.ends_with('-');
    let n_names = words.iter().position(is_change).unwrap_or(words.len());
    let (names, changes) = words.split_at(n_names);
    (names.to_vec(), changes.to_vec())
}

fn label_request(changes: &[String]) -> Result<v1::UpdateNodeRequest, Failure> {
    let mut request = v1::UpdateNodeRequest::default();
    if changes.is_empty() {
        return Err(Failure::usage("no change is given, as key=value or key-"));
    }
    for change in changes {
        match (change.split_once('='), change.strip_suffix('-')) {
            (Some((key, value)), _) if !key.is_empty() => {
                request.set_labels.insert(key.to_owned(), value.to_owned());
            }
            (None, Some(key)) if !key.is_empty() => request.remove_labels.push(key.to_owned()),
            _ => return Err(Failure::usage(format!("`{change}` is neither key=value nor key-"))),
        }
    }
    Ok(request)
}

fn taint_request(changes: &[String]) -> Result<v1::UpdateNodeRequest, Failure> {
    let mut request = v1::UpdateNodeRequest::default();
    if changes.is_empty() {
        return Err(Failure::usage("no change is given, as key=value:no-schedule or key-"));
    }
    for change in changes {
        if let Some(key) = change.strip_suffix('-').filter(|key| !key.is_empty() && !key.contains(':')) {
            request.remove_taints.push(key.to_owned());
            continue;
        }
        let bad = || {
            Failure::usage(format!(
                "`{change}` is neither key[=value]:no-schedule, :prefer-no-schedule or :no-execute, nor key-"
            ))
        };
        let (taint, effect) = change.rsplit_once(':').ok_or_else(bad)?;
        let effect = match effect {
            "no-schedule" | "NoSchedule" => v1::TaintEffect::NoSchedule,
            "prefer-no-schedule" | "PreferNoSchedule" => v1::TaintEffect::PreferNoSchedule,
            "no-execute" | "NoExecute" => v1::TaintEffect::NoExecute,
            _ => return Err(bad()),
        };
        let (key, value) = taint.split_once('=').unwrap_or((taint, ""));
        if key.is_empty() {
            return Err(bad());
        }
        request.set_taints.push(v1::Taint {
            key: key.to_owned(),
            value: value.to_owned(),
            effect: effect.into(),
            ..v1::Taint::default()
        });
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn names_come_before_changes() {
        let split = |list: &[&str]| {
            let (names, changes) = split_words(&words(list));
            (names.join(" "), changes.join(" "))
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(split(&["n-1", "n-2", "zone=a", "old-"]), pair("n-1 n-2", "zone=a old-"));
        assert_eq!(split(&["n-1", "gpu:no-schedule", "x"]), pair("n-1", "gpu:no-schedule x"));
        assert_eq!(split(&["zone=a"]), pair("", "zone=a"));
    }

    #[test]
    fn labels_are_set_and_removed() {
        let request = label_request(&words(&["zone=a", "empty=", "old-"])).unwrap();
        assert_eq!(request.set_labels["zone"], "a");
        assert_eq!(request.set_labels["empty"], "");
        assert_eq!(request.remove_labels, ["old"]);
        for bad in ["zone", "=a", "-"] {
            assert!(label_request(&words(&[bad])).is_err(), "{bad}");
        }
    }

    #[test]
    fn taints_are_set_and_removed() {
        let changes =
            words(&["gpu=only:no-schedule", "spot:prefer-no-schedule", "dead=disk:no-execute", "old-"]);
        let request = taint_request(&changes).unwrap();
        assert_eq!(request.set_taints[0].value, "only");
        assert_eq!(request.set_taints[1].effect(), v1::TaintEffect::PreferNoSchedule);
        assert_eq!(request.set_taints[2].effect(), v1::TaintEffect::NoExecute);
        assert_eq!(request.remove_taints, ["old"]);
        for bad in ["gpu", "gpu=only:never", ":no-schedule", "-"] {
            assert!(taint_request(&words(&[bad])).is_err(), "{bad}");
        }
    }
}
