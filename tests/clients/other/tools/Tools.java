import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.common.utils.Exit;
import org.slf4j.LoggerFactory;

/**
 * Runs Kafka's command-line tools one after another, without a JVM for each. A line of standard input is
 * {"tool": CLASS, "arguments": [...], "input": TEXT}; the answer is {"code": EXIT CODE, "output": TEXT} on one line, the
 * text being what the tool wrote to its standard output and standard error.
 */
public final class Tools {
    private static final int PATIENCE_S = 90;
    private static final ByteArrayOutputStream OUTPUT = new ByteArrayOutputStream();
    private static final List<Runnable> HOOKS = new ArrayList<>();
    private static CompletableFuture<Integer> code;

    public static void main(String[] arguments) throws Exception {
        LoggerFactory.getLogger(Tools.class); // keeps the real standard error for logs
        PrintStream answers = System.out;
        // Never replaced, only emptied: a library may keep what it found in System.out.
        PrintStream captured = new PrintStream(OUTPUT, true, StandardCharsets.UTF_8);
        System.setOut(captured);
        System.setErr(captured);
        Exit.setExitProcedure((status, message) -> end(status));
        Exit.setHaltProcedure((status, message) -> end(status));
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode request = mapper.readTree(line);
            String[] words = mapper.convertValue(request.get("arguments"), String[].class);
            int status = run(request.get("tool").asText(), words, request.path("input").asText(""));
            answers.println(mapper.writeValueAsString(
                    new LinkedHashMap<>(Map.of("code", status, "output", OUTPUT.toString(StandardCharsets.UTF_8)))));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    /** What the tool calls instead of System.exit: its thread, which must not go on, waits forever. */
    private static void end(int status) {
        code.complete(status);
        while (true) {
            LockSupport.park();
        }
    }

    private static int run(String tool, String[] arguments, String input) throws Exception {
        OUTPUT.reset();
        HOOKS.clear();
        CompletableFuture<Integer> ended = new CompletableFuture<>();
        code = ended;
        System.setIn(new ByteArrayInputStream(input.getBytes(StandardCharsets.UTF_8)));
        Thread thread = new Thread(() -> {
            try {
                Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
                ended.complete(0);
            } catch (Throwable failure) {
                failure.printStackTrace();
                ended.complete(1);
            }
        });
        thread.setDaemon(true);
        thread.start();
        int status = ended.get(PATIENCE_S, TimeUnit.SECONDS);
        HOOKS.forEach(Runnable::run);
        return status;
    }
}
