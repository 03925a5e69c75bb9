import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;

/** Apache's own evaluator of SQL92 expressions, as its broker uses it. */
final class Filters {
    private Filters() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("filter.evaluate", Filters::evaluate);
    }

    /**
     * expressions: texts; properties: maps. For each expression, "error" when it does not compile, else one letter for
     * each map: 1 for a match, 0 for none.
     */
    private static Object evaluate(JSONObject args) {
        List<Map<String, String>> messages = new ArrayList<>();
        JSONArray properties = args.getJSONArray("properties");
        for (int i = 0; i < properties.size(); i++) {
            Map<String, String> one = new HashMap<>();
            properties.getJSONObject(i).forEach((name, value) -> one.put(name, String.valueOf(value)));
            messages.add(one);
        }
        List<String> answers = new ArrayList<>();
        JSONArray expressions = args.getJSONArray("expressions");
        for (int i = 0; i < expressions.size(); i++) {
            answers.add(answers(expressions.getString(i), messages));
        }
        return answers;
    }

    private static String answers(String text, List<Map<String, String>> messages) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
        } catch (Throwable e) {
            return "error";
        }
        StringBuilder found = new StringBuilder();
        for (Map<String, String> message : messages) {
            Object value;
            try {
                value = expression.evaluate(new MessageEvaluationContext(message));
            } catch (Throwable e) {
                value = null;
            }
            found.append(Boolean.TRUE.equals(value) ? '1' : '0');
        }
        return found.toString();
    }
}
