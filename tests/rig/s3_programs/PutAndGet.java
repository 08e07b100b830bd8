import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Arrays;
import java.util.Random;

/** Stores and reads objects with Java's HttpClient as it is by default, which offers HTTP/2. The argument is the URL of a
 * bucket that everybody may write to and read from. */
public class PutAndGet {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (int size : new int[] {0, 5, 100_000, 1 << 20}) {
            byte[] data = new byte[size];
            new Random(size).nextBytes(data);
            HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(arguments[0] + "/of-java-" + size));
            HttpRequest put = request.copy().header("x-amz-acl", "public-read")
                .PUT(HttpRequest.BodyPublishers.ofByteArray(data)).build();
            HttpResponse<String> stored = client.send(put, HttpResponse.BodyHandlers.ofString());
            HttpResponse<byte[]> found = client.send(request.GET().build(), HttpResponse.BodyHandlers.ofByteArray());
            if (stored.statusCode() != 200 || !Arrays.equals(data, found.body())) {
                throw new AssertionError(size + " bytes: " + stored.statusCode() + " " + stored.body());
            }
        }
    }
}
