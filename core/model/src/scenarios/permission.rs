//! Whether principals may make calls, as each server and each service judges it.

use godel_identity::{
    needs::NEEDS,
    permission::{CallObject, Permission, PersonRole, Principal, allow},
};

use super::{Checksum, Done, Size, Work};

/// Entries of each list of a principal that has some: several, so that a verdict reads them.
const N_LISTED: usize = 8;

/// A call to be judged: its principal by position, its method, and what it is about by position.
struct JudgedCall {
    principal: usize,
    method: &'static str,
    object: usize,
}

struct Judging {
    principals: Vec<Principal>,
    objects: Vec<CallObject<'static>>,
    calls: Vec<JudgedCall>,
    verdicts: Vec<Permission>,
}

/// Every role, with lists and without.
fn principals() -> Vec<Principal> {
    let list = |stem: &str| (0..N_LISTED).map(|number| format!("{stem}-{number}")).collect();
    let plain = PersonRole::ALL.map(|role| Principal::new("bob", role));
    let listed = PersonRole::ALL.map(|role| Principal {
        groups: list("group"),
        namespaces: list("team"),
        queues: list("batch"),
        default_namespace: "ann".to_owned(),
        ..Principal::new("ann", role)
    });
    plain.into_iter().chain(listed).collect()
}

/// Nothing, what is at the beginning and at the end of a list, and what is in none.
fn objects() -> Vec<CallObject<'static>> {
    let of = |namespace, queue, owner| CallObject {
        namespace: Some(namespace),
        queue: Some(queue),
        node: None,
        owner: Some(owner),
    };
    vec![
        CallObject::default(),
        of("", "", ""),
        of("team-0", "batch-0.nightly", "ann"),
        of("team-7", "batch-7", "group-7"),
        of("team-7", "batch-70", "group-7"),
        of("team-7", "batch-7", "group-70"),
        of("team-70", "batch-7", "group-7"),
        CallObject { namespace: Some("team-3"), ..CallObject::default() },
        CallObject { owner: Some("bob"), ..CallObject::default() },
    ]
}

/// Each principal makes each call about each object, again and again.
pub(super) fn verdicts(size: Size) -> Box<dyn Work> {
    let (principals, objects) = (principals(), objects());
    let n_calls = size.pick(200_000, 20_000) as usize;
    let call = |number: usize| {
        let (rest, principal) = (number / principals.len(), number % principals.len());
        let (rest, object) = (rest / objects.len(), rest % objects.len());
        JudgedCall { principal, method: NEEDS[rest % NEEDS.len()].0, object }
    };
    let calls = (0..n_calls).map(call).collect();
    Box::new(Judging { principals, objects, calls, verdicts: Vec::with_capacity(n_calls) })
}

impl Work for Judging {
    fn run(&mut self) {
        for JudgedCall { principal, method, object } in &self.calls {
            let verdict = allow(&self.principals[*principal], method, &self.objects[*object]);
            self.verdicts.push(verdict);
        }
    }

    fn done(&self) -> Done {
        let mut checksum = Checksum::default();
        for verdict in &self.verdicts {
            checksum.add(match verdict {
                Permission::Granted => 0,
                Permission::NotForPersons => 1,
                Permission::Role(least) => 2 + *least as u64,
                Permission::Namespace => 10,
                Permission::Queue => 11,
                Permission::Owner => 12,
                Permission::OtherPrincipal => 13,
                Permission::Unproven => 14,
            });
        }
        Done { n_ops: self.verdicts.len() as u64, checksum: checksum.0 }
    }
}
