import java.io.UnsupportedEncodingException;
import java.net.URLDecoder;
import java.util.HashMap;
import java.util.Map;

/** A command line of the driver: a verb and options, `VERB key=value ...`; values are percent encoded. */
final class Command {
    final String verb;
    private final Map<String, String> options = new HashMap<>();

    Command(String line) throws UnsupportedEncodingException {
        String[] words = line.trim().split(" +");
        verb = words[0];
        for (int i = 1; i < words.length; i++) {
            int at = words[i].indexOf('=');
            if (at < 0) {
                throw new IllegalArgumentException("not key=value: " + words[i]);
            }
            options.put(words[i].substring(0, at), URLDecoder.decode(words[i].substring(at + 1), "UTF-8"));
        }
    }

    boolean has(String key) {
        return options.containsKey(key);
    }

    String text(String key) {
        if (!has(key)) {
            throw new IllegalArgumentException(verb + " needs " + key);
        }
        return options.get(key);
    }

    String text(String key, String otherwise) {
        return options.getOrDefault(key, otherwise);
    }

    int number(String key, int otherwise) {
        return has(key) ? Integer.parseInt(text(key)) : otherwise;
    }

    long big(String key, long otherwise) {
        return has(key) ? Long.parseLong(text(key)) : otherwise;
    }

    boolean flag(String key) {
        return Boolean.parseBoolean(text(key, "false"));
    }
}
