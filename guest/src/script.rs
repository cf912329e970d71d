//! What runs in a guest, and the shell around it.

use std::fmt::Write;
use std::path::Path;

use crate::container;

/// A command for guests: what a shell reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script(String);

impl Script {
    /// A shell script.
    pub fn shell(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// One command with its arguments, each of which arrives as it is.
    pub fn command(words: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let words: Vec<String> = words.into_iter().map(|word| quote(word.as_ref())).collect();
        Self(words.join(" "))
    }

    /// The shell's text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// A word as a shell reads it literally.
pub(crate) fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%^".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// How the hosts of a run are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One guest, one command.
    One,
    /// Two guests, a command in each.
    Two,
    /// One guest with two containers, a command in each.
    Containers,
}

impl Layout {
    /// Guests to boot.
    pub(crate) fn guests(self) -> u8 {
        if self == Self::Two { 2 } else { 1 }
    }

    /// Commands that run, each with its own output and status.
    pub(crate) fn hosts(self) -> u8 {
        if self == Self::One { 1 } else { 2 }
    }
}

/// The script that guest number `guest` starts with.
pub(crate) fn start(layout: Layout, guest: u8, workspace: &Path) -> String {
    let workspace = quote(&workspace.to_string_lossy());
    let mut text = format!(
        "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 ADVERB_OUT=/run/adverb/out\n\
         hostname guest{guest}\nport() {{ echo /dev/$(ls /sys/class/virtio-ports | grep p$1'$'); }}\nulimit -l unlimited\nulimit -n 65536\nulimit -c 0\nip link set lo up\ncd {workspace}\n"
    );
    match layout {
        Layout::Two => text.push_str(&two_hosts(guest)),
        Layout::One | Layout::Containers => text.push_str(DUMMIES),
    }
    // Every host is up before any command starts.
    text.push_str(AWAIT_GIDS);
    let _ = writeln!(
        text,
        "chmod 666 /dev/infiniband/* 2>/dev/null\ntouch /run/adverb/ready-{guest}"
    );
    for other in 1..=layout.guests() {
        let _ = writeln!(text, "until [ -e /run/adverb/ready-{other} ]; do sleep 0.1; done");
    }
    match layout {
        Layout::One | Layout::Two => text.push_str(&run_and_report(guest, 1, "bash /run/adverb/command")),
        Layout::Containers => {
            for host in 1..=2 {
                let bundle = format!("/run/container{host}");
                let _ = writeln!(text, "sh /run/adverb/{}", container::PREPARE);
                let _ = writeln!(
                    text,
                    "cp -r /run/bundle {bundle}; cp /run/adverb/config-{host}.json {bundle}/config.json"
                );
                let crun = format!(
                    "crun --root /run/crun --cgroup-manager disabled run -b {bundle} container{host}"
                );
                let _ = writeln!(text, "(\n{}) &", run_and_report(host, host, &crun));
            }
            text.push_str("wait\n");
        }
    }
    let _ = writeln!(
        text,
        "dmesg > /run/adverb/dmesg-{guest}\nsync\necho o > /proc/sysrq-trigger\nsleep 60"
    );
    text
}

/// Runs a command with its output to port `port`, and leaves its status.
fn run_and_report(host: u8, port: u8, command: &str) -> String {
    format!(
        "ADVERB_HOST={host} {command} < /dev/null > $(port {port}) 2>&1\n\
         echo $? > /run/adverb/status-{host}.new && mv /run/adverb/status-{host}.new /run/adverb/status-{host}\n"
    )
}

/// Two devices in one guest, on interfaces that lead nowhere: rxe loops what it sends to itself back.
const DUMMIES: &str = "\
for n in 0 1; do
  ip link show dummy$n > /dev/null 2>&1 || ip link add dummy$n type dummy
  ip link set dummy$n mtu 4200 up
  ip addr add 10.77.$n.1/24 dev dummy$n
  rdma link add rxe$n type rxe netdev dummy$n
done
export ADVERB_ADDR=10.77.0.1 ADVERB_PEER=10.77.0.1
";

/// Waits until each device has the GID of its IPv4 address, ::ffff:10.77.x.y: the kernel makes it some time after the device.
const AWAIT_GIDS: &str = "\
for device in /sys/class/infiniband/*; do
  for i in $(seq 100); do grep -qs '^0000:0000:0000:0000:0000:ffff:0a4d:' $device/ports/1/gids/* && break; sleep 0.05; done
done
";

fn two_hosts(guest: u8) -> String {
    let peer = 3 - guest;
    format!(
        "ip link set eth0 mtu 4200 up\nip addr add 10.77.0.{guest}/24 dev eth0\nrdma link add rxe0 type rxe netdev eth0\n\
         export ADVERB_ADDR=10.77.0.{guest} ADVERB_PEER=10.77.0.{peer}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_arrive_as_they_are() {
        let script = Script::command(["echo", "two words", "it's", "", "$HOME", "a=b"]);
        assert_eq!(script.text(), r#"echo 'two words' 'it'\''s' '' '$HOME' a=b"#);
    }

    #[test]
    fn a_shell_reads_quoted_words_back() {
        let words = ["a'b", "c d", "\"e\"", "$f", "`g`", "\\h", "*"];
        let script = Script::command(["printf", "%s\\n"].into_iter().chain(words));
        let output = std::process::Command::new("sh")
            .args(["-c", script.text()])
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8(output.stdout)
                .unwrap()
                .lines()
                .collect::<Vec<_>>(),
            words
        );
    }

    #[test]
    fn hosts_wait_for_each_other() {
        let text = start(Layout::Two, 2, Path::new("/w"));
        for part in [
            "ready-1",
            "ready-2",
            "ADVERB_ADDR=10.77.0.2",
            "ADVERB_PEER=10.77.0.1",
            "status-2",
            "rxe0",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
}
