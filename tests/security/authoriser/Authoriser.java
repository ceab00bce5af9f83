import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.SecurityUtils;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Asks Kafka's StandardAuthorizer. A line of standard input is {"acls": [[type, name, pattern, principal, host,
 * operation, permission], ...], "super": PRINCIPALS, "open": BOOLEAN, "principal": P, "host": IP, "questions":
 * [[operation, type, name], ...]}; without a name, the question is whether there is any such resource (KIP-679). The
 * answer is a list of booleans on one line.
 */
public final class Authoriser {
    record Context(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        public String listenerName() {
            return "test";
        }

        public SecurityProtocol securityProtocol() {
            return SecurityProtocol.SASL_SSL;
        }

        public int requestType() {
            return 0;
        }

        public int requestVersion() {
            return 0;
        }

        public String clientId() {
            return "test";
        }

        public int correlationId() {
            return 0;
        }
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(mapper.writeValueAsString(answers(mapper.readTree(line))));
        }
    }

    private static List<Boolean> answers(JsonNode asked) throws Exception {
        Map<Uuid, StandardAcl> acls = new HashMap<>();
        for (JsonNode acl : asked.get("acls")) {
            acls.put(new Uuid(1, acls.size() + 1), new StandardAcl(
                ResourceType.valueOf(acl.get(0).asText()), acl.get(1).asText(), PatternType.valueOf(acl.get(2).asText()),
                acl.get(3).asText(), acl.get(4).asText(), AclOperation.valueOf(acl.get(5).asText()),
                AclPermissionType.valueOf(acl.get(6).asText())));
        }
        List<Boolean> found = new ArrayList<>();
        try (Metrics metrics = new Metrics();
             PluginMetricsImpl own = new PluginMetricsImpl(metrics, Map.of());
             StandardAuthorizer authorizer = new StandardAuthorizer()) {
            authorizer.configure(Map.of(
                StandardAuthorizer.SUPER_USERS_CONFIG, asked.get("super").asText(),
                StandardAuthorizer.ALLOW_EVERYONE_IF_NO_ACL_IS_FOUND_CONFIG, asked.get("open").asText()));
            authorizer.withPluginMetrics(own);
            authorizer.loadSnapshot(acls);
            authorizer.completeInitialLoad();
            Context context = new Context(
                SecurityUtils.parseKafkaPrincipal(asked.get("principal").asText()),
                InetAddress.getByName(asked.get("host").asText()));
            for (JsonNode question : asked.get("questions")) {
                AclOperation operation = AclOperation.valueOf(question.get(0).asText());
                ResourceType type = ResourceType.valueOf(question.get(1).asText());
                AuthorizationResult result = question.size() == 2
                    ? authorizer.authorizeByResourceType(context, operation, type)
                    : authorizer.authorize(context, List.of(new Action(
                        operation, new ResourcePattern(type, question.get(2).asText(), PatternType.LITERAL), 1, false,
                        false))).get(0);
                found.add(result == AuthorizationResult.ALLOWED);
            }
        }
        return found;
    }
}
