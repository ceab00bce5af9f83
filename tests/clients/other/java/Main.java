import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Runs scenarios with Kafka's own Java client. Each line of standard input is "SCENARIO BOOTSTRAP NAME ARGUMENTS...";
 * the answer is "ok", or "failed " and a stack trace on one line. Scenarios may print "at NUMBER" before that.
 * NAME is unique: it prefixes every topic, group and transactional id.
 */
public final class Main {
    interface Scenario {
        void run(Cell cell) throws Exception;
    }

    static final Map<String, Scenario> SCENARIOS = new LinkedHashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // what a library prints is no answer
        Cell.progress = answers;
        Records.register(SCENARIOS);
        Groups.register(SCENARIOS);
        Static.register(SCENARIOS);
        Processing.register(SCENARIOS);
        Admins.register(SCENARIOS);
        Streams.register(SCENARIOS);
        TwoPhase.register(SCENARIOS);
        if (arguments.length > 0) { // one scenario in a process of its own, which may be killed
            SCENARIOS.get(arguments[0]).run(new Cell(arguments));
            return;
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            try {
                SCENARIOS.get(words[0]).run(new Cell(words));
                answers.println("ok");
            } catch (Throwable failure) {
                StringWriter trace = new StringWriter();
                failure.printStackTrace(new PrintWriter(trace, true));
                answers.println("failed " + trace.toString().replace("\n", "\\n"));
            }
            answers.flush();
        }
        System.exit(0);
    }
}
