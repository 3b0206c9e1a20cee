#pragma once

#include <optional>

namespace millpond::rpc {

// The state of a connection over HTTP/1.1. One request is served at a time, so its own state is the
// connection's too. The order is that of a request's life: see the predicates below.
enum class Http1State {
  kIdle,        // between two requests
  kHead,        // the request line and the headers are arriving
  kExpecting,   // the client waits for "100 Continue" before it sends the body
  kBody,        // the body is arriving, with what frames it
  kRunning,     // all of the request has arrived, and there is no answer yet
  kAnswering,   // the answer is being written; the next request may follow
  kLastAnswer,  // the answer is being written; the connection ends after it
  kRefusing,    // the session's own answer, to what is not HTTP; the connection ends after it
  kOver,        // nothing is read or written any more
  kBroken,      // the same at once: what is not written yet is lost
};

enum class Http1Event {
  kHeadBegins,         // a byte comes
  kHeadEnds,           // and a body, which may be empty, follows
  kHeadEndsExpecting,  // the same, once the client has its "100 Continue"
  kBodyGoesOn,         // "100 Continue" is sent, or the client did not wait for it
  kRequestEnds,
  kAnswer,      // an answer is ready, and further requests may follow
  kLastAnswer,  // an answer is ready, and no further request is served
  kAnswerEnds,  // all of it is written
  kRefuse,      // the request is no HTTP, too long or too slow
  kLeave,       // no further request is served, and none has begun
  kBreak,       // the client does not read, or no memory is left
};

// Returns the state after an event. Returns nothing if the event cannot happen in that state, or
// changes nothing there. Pure.
std::optional<Http1State> NextState(Http1State state, Http1Event event);

// True while the client's bytes are parsed.
constexpr bool TakesInput(Http1State state) { return state <= Http1State::kBody; }
constexpr bool IsInBody(Http1State state) {
  return state == Http1State::kExpecting || state == Http1State::kBody;
}
// True while a stream has a request, and not all of its answer is written.
constexpr bool HasStream(Http1State state) {
  return Http1State::kExpecting <= state && state <= Http1State::kLastAnswer;
}
// True if a request may follow the one that is served.
constexpr bool MayHaveMore(Http1State state) { return state <= Http1State::kAnswering; }

}  // namespace millpond::rpc
