//! Changes of node records, of one node or of many.

use godel_proto::v1;

use super::get;
use crate::{
    args::node::{Changes, Nodes},
    client::Client,
    exit::Failure,
    output,
};

pub(super) async fn cordon(client: &Client, nodes: Nodes, cordoned: bool) -> Result<(), Failure> {
    let request = v1::UpdateNodeRequest { cordoned: Some(cordoned), ..v1::UpdateNodeRequest::default() };
    let what = if cordoned { "cordoned" } else { "uncordoned" };
    update_all(client, nodes, &request, what).await.map(drop)
}

pub(super) async fn undrain(client: &Client, nodes: Nodes) -> Result<(), Failure> {
    let request = v1::UpdateNodeRequest { undrain: true, ..v1::UpdateNodeRequest::default() };
    update_all(client, nodes, &request, "drained no longer").await.map(drop)
}

pub(super) async fn label(client: &Client, changes: Changes) -> Result<(), Failure> {
    let (names, words) = split_words(&changes.words);
    let request = label_request(&words)?;
    update_all(client, Nodes { names, selector: changes.selector }, &request, "labelled").await.map(drop)
}

pub(super) async fn taint(client: &Client, changes: Changes) -> Result<(), Failure> {
    let (names, words) = split_words(&changes.words);
    let request = taint_request(&words)?;
    update_all(client, Nodes { names, selector: changes.selector }, &request, "tainted").await.map(drop)
}

/// A node to be changed.
struct Target {
    name: String,
    /// Of its record, before.
    revision: u64,
}

impl Target {
    fn of(node: Option<v1::Node>) -> Self {
        let meta = node.and_then(|node| node.spec).and_then(|spec| spec.meta).unwrap_or_default();
        Self { name: meta.name, revision: meta.revision }
    }
}

/// Makes the same change of every node that is named or selected, and says what changed. One that fails does not keep
/// the others from it. Their names.
pub(super) async fn update_all(
    client: &Client,
    nodes: Nodes,
    request: &v1::UpdateNodeRequest,
    what: &str,
) -> Result<Vec<String>, Failure> {
    if nodes.names.is_empty() && nodes.selector.is_empty() {
        return Err(Failure::usage("no node is named, and no label selects one"));
    }
    let mut targets = Vec::new();
    for name in &nodes.names {
        targets.push(Target::of(get(client, name).await?.node));
    }
    if !nodes.selector.is_empty() {
        let selected = client.list_nodes(&nodes.selector).await?;
        if selected.is_empty() && targets.is_empty() {
            return Err(Failure::new(crate::exit::Code::NotFound, "no node has these labels"));
        }
        targets.extend(selected.into_iter().map(|node| Target::of(Some(node))));
    }
    let (n_targets, mut n_changed, mut failures) = (targets.len(), 0, Vec::new());
    let mut names = Vec::new();
    for Target { name, revision } in targets {
        match update(client, v1::UpdateNodeRequest { name: name.clone(), ..request.clone() }).await {
            Ok(at) if at > revision => {
                n_changed += 1;
                output::say(format!("node {name} {what} at revision {at}"));
                names.push(name);
            }
            Ok(_) => {
                output::say(format!("node {name} unchanged"));
                names.push(name);
            }
            Err(failure) => {
                output::say(format!("node {name}: {failure}"));
                failures.push(failure);
            }
        }
    }
    if n_targets > 1 {
        let n_unchanged = names.len() - n_changed;
        output::say(format!("{n_changed} nodes changed, {n_unchanged} unchanged, {} failed", failures.len()));
    }
    let n_failed = failures.len();
    match failures.into_iter().next() {
        None => Ok(names),
        Some(first) if n_targets == 1 => Err(first),
        Some(first) => Err(Failure::new(first.code, format!("{n_failed} of {n_targets} nodes failed"))),
    }
}

async fn update(client: &Client, request: v1::UpdateNodeRequest) -> Result<u64, Failure> {
    let answer = client
        .read(|| {
            // The same change made twice is the same.
            let (mut nodes, request) = (client.nodes(), request.clone());
            async move { nodes.update_node(request).await }
        })
        .await?;
    Ok(answer.into_inner().revision)
}

/// Names, up to the first word that is a change, and the rest.
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
                "`{change}` is neither key[=value]:no-schedule, key[=value]:prefer-no-schedule, nor key-"
            ))
        };
        let (taint, effect) = change.rsplit_once(':').ok_or_else(bad)?;
        let effect = match effect {
            "no-schedule" | "NoSchedule" => v1::TaintEffect::NoSchedule,
            "prefer-no-schedule" | "PreferNoSchedule" => v1::TaintEffect::PreferNoSchedule,
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
        let changes = words(&["gpu=only:no-schedule", "spot:prefer-no-schedule", "old-"]);
        let request = taint_request(&changes).unwrap();
        assert_eq!(request.set_taints[0].value, "only");
        assert_eq!(request.set_taints[1].effect(), v1::TaintEffect::PreferNoSchedule);
        assert_eq!(request.remove_taints, ["old"]);
        for bad in ["gpu", "gpu=only:never", ":no-schedule", "-"] {
            assert!(taint_request(&words(&[bad])).is_err(), "{bad}");
        }
    }
}
