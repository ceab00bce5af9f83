// Runs scenarios with Sarama. Each line of standard input is "SCENARIO BOOTSTRAP NAME VERSION ARGUMENTS..."; the answer
// is "ok", or "failed " and the reason. Scenarios may print "at NUMBER" before that. NAME is unique: it prefixes every
// topic, group and transactional id. VERSION is the version of Kafka that Sarama is configured for: by it, and not by
// what the node says, it chooses the versions of its calls.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
)

var scenarios = map[string]func(*cell){
	"idempotent":    idempotent,
	"compressed":    compressed,
	"transactions":  transactions,
	"zombie":        zombie,
	"members":       members,
	"static":        static,
	"process":       process,
	"topics":        topics,
	"configs":       configs,
	"groups":        groups,
	"group-offsets": groupOffsets,
	"records":       records,
	"cluster":       cluster,
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if failure := run(words); failure != "" {
			fmt.Println("failed " + strings.ReplaceAll(failure, "\n", "\\n"))
		} else {
			fmt.Println("ok")
		}
	}
}

func run(words []string) (failure string) {
	c := newCell(words)
	defer c.close()
	defer func() {
		if reason := recover(); reason != nil {
			failure = fmt.Sprintf("%v\n%s", reason, debug.Stack())
		}
	}()
	scenarios[words[0]](c)
	return ""
}
