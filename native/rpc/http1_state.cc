#include "native/rpc/http1_state.h"

#include <array>
#include <cstddef>

namespace millpond::rpc {
namespace {

using State = Http1State;
using Event = Http1Event;

struct Move {
  State from;
  Event event;
  State to;
};

// An answer to a request that is still arriving ends the connection, because the rest of the
// request is not read (RFC 9112, 9.6).
constexpr Move kMoves[] = {
    {State::kIdle, Event::kHeadBegins, State::kHead},
    {State::kIdle, Event::kLeave, State::kOver},

    {State::kHead, Event::kHeadEnds, State::kBody},
    {State::kHead, Event::kHeadEndsExpecting, State::kExpecting},
    {State::kHead, Event::kRefuse, State::kRefusing},

    {State::kExpecting, Event::kBodyGoesOn, State::kBody},
    {State::kExpecting, Event::kRequestEnds, State::kRunning},
    {State::kExpecting, Event::kAnswer, State::kLastAnswer},
    {State::kExpecting, Event::kLastAnswer, State::kLastAnswer},
    {State::kExpecting, Event::kRefuse, State::kRefusing},

    {State::kBody, Event::kRequestEnds, State::kRunning},
    {State::kBody, Event::kAnswer, State::kLastAnswer},
    {State::kBody, Event::kLastAnswer, State::kLastAnswer},
    {State::kBody, Event::kRefuse, State::kRefusing},

    {State::kRunning, Event::kAnswer, State::kAnswering},
    {State::kRunning, Event::kLastAnswer, State::kLastAnswer},
    {State::kRunning, Event::kRefuse, State::kRefusing},

    {State::kAnswering, Event::kAnswerEnds, State::kIdle},
    {State::kLastAnswer, Event::kAnswerEnds, State::kOver},
    {State::kRefusing, Event::kAnswerEnds, State::kOver},
};

constexpr size_t kStateCount = static_cast<size_t>(State::kBroken) + 1;
constexpr size_t kEventCount = static_cast<size_t>(Event::kBreak) + 1;

// The moves by state and event. A state that an event does not change stands for no move.
using Table = std::array<std::array<State, kEventCount>, kStateCount>;

constexpr Table MakeTable() {
  Table table{};
  for (size_t state = 0; state < kStateCount; ++state) {
    for (size_t event = 0; event < kEventCount; ++event) {
      table[state][event] = static_cast<State>(state);
    }
  }
  for (const Move& move : kMoves) {
    table[static_cast<size_t>(move.from)][static_cast<size_t>(move.event)] = move.to;
  }
  for (size_t state = 0; state < static_cast<size_t>(State::kOver); ++state) {
    table[state][static_cast<size_t>(Event::kBreak)] = State::kBroken;
  }
  return table;
}

constexpr Table kTable = MakeTable();

}  // namespace

std::optional<Http1State> NextState(Http1State state, Http1Event event) {
  const State next = kTable[static_cast<size_t>(state)][static_cast<size_t>(event)];
  if (next == state) return {};
  return next;
}

}  // namespace millpond::rpc
