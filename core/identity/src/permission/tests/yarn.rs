//! Calls of YARN's clients, for every kind of caller: each row of the table, against what a table of words says.

use super::*;
use crate::needs::YARN_NEEDS;

/// Calls that change an application, or are of them.
const CHANGES: [&str; 21] = [
    "getNewApplication",
    "submitApplication",
    "forceKillApplication",
    "failApplicationAttempt",
    "moveApplicationAcrossQueues",
    "updateApplicationPriority",
    "updateApplicationTimeouts",
    "signalToContainer",
    "getDelegationToken",
    "renewDelegationToken",
    "cancelDelegationToken",
    "getNewReservation",
    "submitReservation",
    "updateReservation",
    "deleteReservation",
    "POST /ws/v1/cluster/apps",
    "POST /ws/v1/cluster/apps/new-application",
    "PUT /ws/v1/cluster/apps/ID/priority",
    "PUT /ws/v1/cluster/apps/ID/queue",
    "PUT /ws/v1/cluster/apps/ID/state",
    "PUT /ws/v1/cluster/apps/ID/timeout",
];
const OF_MASTERS: [&str; 3] = ["registerApplicationMaster", "finishApplicationMaster", "allocate"];
const OF_OPERATORS: [&str; 1] = ["refreshNodes"];

fn is_one_of(path: &str, names: &[&str]) -> bool {
    names.iter().any(|name| path.strip_suffix(name).is_some_and(|rest| rest.ends_with('/')))
}

/// An application, by owner and queue.
fn application<'a>(owner: &'a str, queue: &'a str) -> CallObject<'a> {
    CallObject { owner: Some(owner), queue: Some(queue), ..CallObject::default() }
}

#[test]
fn every_call_of_yarn_is_judged_for_every_caller() {
    assert_eq!(YARN_NEEDS.iter().filter(|(path, _)| is_one_of(path, &CHANGES)).count(), CHANGES.len());
    let own = [("ann", "batch"), ("etl", "batch.nightly")];
    let foreign = [("bob", "batch"), ("yarn-simple:ann", "batch"), ("ann", "prod")];
    let simple_own = [("yarn-simple:ann", "prod"), ("yarn-simple:ann", "batch")];
    let simple_foreign = [("ann", "batch"), ("etl", "batch"), ("yarn-simple:bob", "batch")];
    for (path, _) in YARN_NEEDS {
        let check = |principal: &Principal, objects: &[(&str, &str)], may: bool| {
            for (owner, queue) in objects {
                let granted = allow(principal, path, &application(owner, queue)) == Permission::Granted;
                assert_eq!(granted, may, "{path} of {} for {owner} in {queue}", principal.name);
            }
        };
        let (changes, operates) = (is_one_of(path, &CHANGES), is_one_of(path, &OF_OPERATORS));
        let is_for_people = !is_one_of(path, &OF_MASTERS);
        let reads = is_for_people && !changes && !operates;
        let user = ann(PersonRole::User);
        check(&user, &own, reads || changes);
        check(&user, &foreign, reads);
        let simple = Principal::yarn_simple("ann");
        check(&simple, &simple_own, reads || changes);
        check(&simple, &simple_foreign, reads);
        for object in [own, [foreign[0], foreign[1]]] {
            check(&ann(PersonRole::Viewer), &object, reads);
            check(&ann(PersonRole::Operator), &object, is_for_people);
            check(&ann(PersonRole::Admin), &object, is_for_people);
        }
    }
}

#[test]
fn who_proves_nothing_calls_no_other_service() {
    let simple = Principal::yarn_simple("admin");
    for (path, needs) in NEEDS {
        let permission = allow(&simple, path, &CallObject::default());
        let expected =
            if needs.of_persons().is_some() { Permission::Unproven } else { Permission::NotForPersons };
        assert_eq!(permission, expected, "{path}");
    }
    assert_ne!(allow(&simple, "hadoop/NoProtocol/noMethod", &CallObject::default()), Permission::Granted);
    assert!(simple.is_yarn_simple() && !Principal::admin().is_yarn_simple());
}

#[test]
fn refusals_of_yarn_say_how_to_prove_a_name() {
    const KILL: &str = "hadoop/ApplicationClientProtocol/forceKillApplication";
    const DRAIN: &str = "hadoop/ResourceManagerAdministrationProtocol/refreshNodes";
    let simple = Principal::yarn_simple("ann");
    for (principal, method, object, words) in [
        (&simple, KILL, application("bob", "batch"), "yarn-simple:ann has not proved its name"),
        (&simple, KILL, application("bob", "batch"), "HADOOP_TOKEN_FILE_LOCATION"),
        (&simple, DRAIN, CallObject::default(), "needs role operator; yarn-simple:ann has not proved"),
        (&simple, LIST, CallObject::default(), "may call the YARN adapter only"),
        (
            &ann(PersonRole::User),
            KILL,
            application("bob", "batch"),
            "is neither bob nor in a group of that name",
        ),
        (&ann(PersonRole::User), KILL, application("ann", "prod"), "`godel principal set ann --queue prod`"),
        (&ann(PersonRole::Viewer), KILL, CallObject::default(), "needs role user; ann has role viewer"),
    ] {
        let refusal = PermissionRefusal::judge(principal, method, &object).unwrap_err().to_string();
        assert!(refusal.contains(words), "{refusal}");
    }
}
