import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

/**
 * Sends requests with Java's HttpClient as it is: over http:// its first request asks for an upgrade to HTTP/2 (h2c).
 *
 * <p>Arguments: URL, BODY. Prints status and body of a POST, of a GET of the same server's /healthz, and of the POST again.
 */
public final class DefaultClient {
  public static void main(String[] arguments) throws Exception {
    URI predict = URI.create(arguments[0]);
    HttpRequest post =
        HttpRequest.newBuilder(predict)
            .POST(HttpRequest.BodyPublishers.ofString(arguments[1]))
            .build();
    HttpRequest get = HttpRequest.newBuilder(predict.resolve("/healthz")).build();
    for (HttpRequest request : new HttpRequest[] {post, get, post}) {
      // A new client each time, because a client asks for the upgrade once.
      HttpResponse<String> response =
          HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
      System.out.println(response.statusCode() + " " + response.body().strip().replace("\n", " "));
    }
  }
}
