use serde_json::json;

use super::*;

fn example() -> Value {
    json!({
        "application-id": "application_1404203615263_0001",
        "application-name": "test",
        "queue": "root.night",
        "priority": "3",
        "am-container-spec": {
            "local-resources": {
                "entry": [{
                    "key": "AppMaster.jar",
                    "value": {
                        "resource": "hdfs://hdfs-namenode:9000/user/testuser/AppMaster.jar",
                        "type": "FILE",
                        "visibility": "APPLICATION",
                        "size": 43_004,
                        "timestamp": 1_405_452_071_209i64,
                    },
                }]
            },
            "commands": { "command": "{{JAVA_HOME}}/bin/java Master 1><LOG_DIR>/out" },
            "environment": { "entry": { "key": "CLASSPATH", "value": "{{CLASSPATH}}<CPS>./*" } },
            "service-data": { "entry": { "key": "test", "value": "dmFsdWUxMg" } },
            "credentials": { "tokens": "", "secrets": { "entry": [{ "key": "secret1", "value": "c2VjcmV0MQ==" }] } },
            "application-acls": {
                "entry": [
                    { "key": "VIEW_APP", "value": "ann, bob" },
                    { "key": "MODIFY_APP", "value": "ann" },
                ]
            },
        },
        "unmanaged-AM": "false",
        "max-app-attempts": 2,
        "resource": {
            "memory": 1_024,
            "vCores": 1,
            "resourceInformations": { "resourceInformation": { "name": "yarn.io/gpu", "value": 2 } },
        },
        "application-type": "YARN",
        "keep-containers-across-application-attempts": true,
        "application-tags": { "tag": ["Tag 2", "tag1"] },
        "log-aggregation-context": { "log-include-pattern": "file1" },
        "attempt-failures-validity-interval": 3_600_000,
        "application-timeouts": { "entry": { "key": "LIFETIME", "value": "60" } },
    })
}

#[test]
fn the_label_of_a_master_is_its_own_or_that_of_its_application() {
    let label = |labels: &[(&str, &str)]| {
        let mut body = example();
        for (key, value) in labels {
            body[*key] = json!(value);
        }
        read(&body, "ann").unwrap().1.submission.master.unwrap().label
    };
    assert_eq!(label(&[]), "");
    let of_app = ("app-node-label-expression", "slow");
    assert_eq!(label(&[of_app]), "slow");
    assert_eq!(label(&[of_app, ("am-container-node-label-expression", "fast")]), "fast");
    assert_eq!(label(&[of_app, ("am-container-node-label-expression", "")]), "slow");
}

#[test]
fn the_example_of_yarn_is_read() {
    let (id, submitted) = read(&example(), "ann").unwrap();
    assert_eq!(id.to_string(), "application_1404203615263_0001");
    let AppSubmission {
        name,
        user,
        queue,
        kind,
        priority,
        master,
        label,
        max_attempts,
        validity_interval_ms,
        keeps_containers,
        lifetime_ms,
    } = submitted.submission;
    assert_eq!([&name, &user, &queue, &kind], ["test", "ann", "root.night", "YARN"]);
    assert_eq!((priority, max_attempts, validity_interval_ms), (3, 2, 3_600_000));
    assert_eq!((keeps_containers, lifetime_ms), (true, Some(60_000)));
    let expected = [("cpu", 1_000), ("gpu", 2_000), ("memory", 1 << 30)];
    let expected = expected.map(|(name, amount)| (name.to_owned(), amount));
    assert_eq!(master.unwrap().capability, expected.into());
    assert_eq!(label, "");
    assert_eq!(submitted.tags, ["tag 2", "tag1"]);
    let launch = ContainerLaunchContextProto::decode(&*submitted.launch).unwrap();
    assert_eq!(launch.command, ["{{JAVA_HOME}}/bin/java Master 1><LOG_DIR>/out"]);
    assert_eq!(launch.environment[0].value(), "{{CLASSPATH}}<CPS>./*");
    assert_eq!(launch.service_data[0].value.as_deref(), Some(&b"value12"[..]));
    let jar = launch.local_resources[0].value.clone().unwrap();
    let at = jar.resource.clone().unwrap();
    assert_eq!((at.scheme(), at.host(), at.port()), ("hdfs", "hdfs-namenode", 9_000));
    assert_eq!(at.file(), "/user/testuser/AppMaster.jar");
    assert_eq!((jar.size(), jar.r#type()), (43_004, LocalResourceTypeProto::File));
    let credentials = Credentials::read(launch.tokens.unwrap()).unwrap();
    assert_eq!(credentials.secrets["secret1"], &b"secret1"[..]);
    assert_eq!(launch.application_ac_ls.len(), 2);
}

#[test]
fn a_master_elsewhere_needs_nothing() {
    let body = json!({ "application-id": "application_17_0001", "unmanaged-AM": true });
    let (_, submitted) = read(&body, "ann").unwrap();
    assert_eq!((submitted.submission.master, submitted.submission.kind.as_str()), (None, "YARN"));
    assert_eq!(submitted.submission.validity_interval_ms, -1);
}

#[test]
fn wrong_fields_are_named() {
    for (change, words) in [
        (json!({ "application-id": "x" }), "application-id: is no application id"),
        (json!({ "application-id": null }), "application-id: is missing"),
        (json!({ "resource": null }), "resource: memory or vCores above 0 are required"),
        (json!({ "resource": { "memory": "much" } }), "resource.memory: is no whole number"),
        (json!({ "am-container-spec": {} }), "am-container-spec.commands: are missing"),
        (json!({ "application-name": 7 }), "application-name: is no text"),
        (json!({ "queue": "a\nb" }), "queue: is too long, or has control characters"),
        (json!({ "priority": 5_000_000_000i64 }), "priority: is too large"),
        (json!({ "unmanaged-AM": "maybe" }), "unmanaged-AM: is no boolean"),
        (json!({ "reservation-id": "reservation_1_1" }), "reservation-id: YARN's reservations"),
        (json!({ "application-tags": { "tag": ["", "a"] } }), "application-tags.tag[0]: is empty"),
        (
            json!({ "application-timeouts": { "entry": { "key": "IDLE", "value": 1 } } }),
            "application-timeouts.entry[0].value: is no LIFETIME",
        ),
        (
            json!({ "am-container-spec": { "credentials": { "tokens": { "entry": { "key": "a", "value": "AAA" } } } } }),
            "am-container-spec.credentials.tokens.entry[0].value: is no encoded token",
        ),
        (
            json!({ "am-container-spec": { "service-data": { "entry": { "key": "a", "value": "*" } } } }),
            "am-container-spec.service-data.entry[0].value: is no base64",
        ),
        (
            json!({ "am-container-spec": { "local-resources": { "entry": { "key": "a", "value": {
                "resource": "no address", "type": "FILE", "visibility": "PUBLIC" } } } } }),
            "am-container-spec.local-resources.entry[0].value.resource: is no address",
        ),
        (
            json!({ "am-container-spec": { "environment": { "entry": [{ "value": "x" }] } } }),
            "am-container-spec.environment.entry[0].key: is missing",
        ),
    ] {
        let mut body = example();
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        let Err(Problem::BadRequest(why)) = read(&body, "ann") else { panic!("{change}") };
        assert!(why.starts_with(words), "{why}");
    }
}

#[test]
fn tokens_and_addresses_are_read() {
    // identifier "id", password "pw", kind "K", service "s".
    let encoded = FOR_URLS.encode(b"\x02id\x02pw\x01K\x01s");
    let mut body = example();
    body["am-container-spec"]["credentials"] =
        json!({ "tokens": { "entry": { "key": "a", "value": encoded } } });
    let launch = read(&body, "ann").unwrap().1.launch;
    let launch = ContainerLaunchContextProto::decode(&*launch).unwrap();
    let token = Credentials::read(launch.tokens.unwrap()).unwrap().tokens["a"].clone();
    assert_eq!((&token.identifier[..], token.kind.as_str(), token.service.as_str()), (&b"id"[..], "K", "s"));
    let local = url("file:/tmp/x.jar").unwrap();
    assert_eq!((local.host, local.port, local.file.as_deref()), (None, Some(-1), Some("/tmp/x.jar")));
    let user = url("http://ann@h/x").unwrap();
    assert_eq!((user.user_info.as_deref(), user.host.as_deref()), (Some("ann"), Some("h")));
    let sixth = url("http://[::1]:80/x").unwrap();
    assert_eq!((sixth.host.as_deref(), sixth.port), (Some("[::1]"), Some(80)));
    for bad in ["", "hdfs", "x y:/a", "http://h:99999/", "http://h"] {
        assert_eq!(url(bad), None, "{bad}");
    }
}
