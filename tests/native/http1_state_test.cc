// The life of requests over HTTP/1.1 as a table: which state follows which event.

#include "native/rpc/http1_state.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace millpond::rpc {
namespace {

using State = Http1State;
using Event = Http1Event;

std::vector<State> AllStates() {
  std::vector<State> states;
  for (int i = 0; i <= static_cast<int>(State::kBroken); ++i) {
    states.push_back(static_cast<State>(i));
  }
  return states;
}

std::vector<Event> AllEvents() {
  std::vector<Event> events;
  for (int i = 0; i <= static_cast<int>(Event::kBreak); ++i) {
    events.push_back(static_cast<Event>(i));
  }
  return events;
}

// Returns the state after all of `events`, each of which must be a move.
State After(const std::vector<Event>& events) {
  State state = State::kIdle;
  for (const Event event : events) {
    const auto next = NextState(state, event);
    EXPECT_TRUE(next) << static_cast<int>(state) << " has no " << static_cast<int>(event);
    state = next.value_or(state);
  }
  return state;
}

TEST(Http1State, RequestsFollowOneAnother) {
  EXPECT_EQ(After({Event::kHeadBegins, Event::kHeadEnds, Event::kRequestEnds, Event::kAnswer,
                   Event::kAnswerEnds}),
            State::kIdle);
  EXPECT_EQ(After({Event::kHeadBegins, Event::kHeadEndsExpecting, Event::kBodyGoesOn,
                   Event::kRequestEnds, Event::kAnswer, Event::kAnswerEnds, Event::kHeadBegins}),
            State::kHead);
}

TEST(Http1State, AnswerBeforeTheRequestsEndIsTheLast) {
  for (const Event head : {Event::kHeadEnds, Event::kHeadEndsExpecting}) {
    EXPECT_EQ(After({Event::kHeadBegins, head, Event::kAnswer}), State::kLastAnswer);
  }
  EXPECT_EQ(After({Event::kHeadBegins, Event::kHeadEnds, Event::kAnswer, Event::kAnswerEnds}),
            State::kOver);
}

TEST(Http1State, RefusalEndsTheConnection) {
  EXPECT_EQ(After({Event::kHeadBegins, Event::kRefuse, Event::kAnswerEnds}), State::kOver);
  // An answer that is on its way is not replaced.
  EXPECT_FALSE(NextState(State::kAnswering, Event::kRefuse));
  EXPECT_FALSE(NextState(State::kLastAnswer, Event::kRefuse));
}

TEST(Http1State, OnlyAnIdleConnectionLeavesAtOnce) {
  for (const State state : AllStates()) {
    EXPECT_EQ(NextState(state, Event::kLeave).has_value(), state == State::kIdle);
  }
}

TEST(Http1State, NothingFollowsTheEnd) {
  for (const State state : AllStates()) {
    const bool is_over = state >= State::kOver;
    EXPECT_EQ(NextState(state, Event::kBreak),
              is_over ? std::nullopt : std::optional(State::kBroken));
    for (const Event event : AllEvents()) {
      if (is_over) EXPECT_FALSE(NextState(state, event));
    }
  }
}

// A stream has one answer at most, its predicates follow the order of its life, and each state is
// reached.
TEST(Http1State, EachStreamHasOneAnswerOverRandomEvents) {
  std::mt19937 random(7);
  std::set<State> reached;
  for (int run = 0; run < 2'000; ++run) {
    State state = State::kIdle;
    int answer_count = 0;  // of this stream
    for (int i = 0; i < 60; ++i) {
      const Event event = AllEvents()[random() % AllEvents().size()];
      const auto next = NextState(state, event);
      if (!next) continue;
      if (event == Event::kHeadBegins) answer_count = 0;
      if (event == Event::kAnswer || event == Event::kLastAnswer || event == Event::kRefuse) {
        ASSERT_EQ(++answer_count, 1);
      }
      ASSERT_TRUE(MayHaveMore(state) || !MayHaveMore(*next));
      ASSERT_TRUE(!TakesInput(*next) || TakesInput(state) || state == State::kAnswering);
      ASSERT_TRUE(!IsInBody(*next) || HasStream(*next));
      ASSERT_TRUE(!HasStream(*next) || HasStream(state) || state == State::kHead);
      state = *next;
      reached.insert(state);
    }
  }
  EXPECT_EQ(reached.size(), AllStates().size());
}

}  // namespace
}  // namespace millpond::rpc
