#include "native/rpc/held_answers.h"

#include <algorithm>

#include "native/rpc/call.h"

namespace millpond::rpc {
namespace {

thread_local HeldAnswers* current_answers = nullptr;

}  // namespace

HeldAnswers::Scope::Scope(HeldAnswers* answers) : outer_(current_answers) {
  current_answers = answers;
}

HeldAnswers::Scope::~Scope() {
  if (current_answers != nullptr && current_answers->held_count_ >= kHeldMax) {
    current_answers->Send();
  }
  current_answers = outer_;
}

bool HeldAnswers::Hold(const std::shared_ptr<CallCarrier>& connection) {
  if (current_answers == nullptr) return false;
  auto& connections = current_answers->connections_;
  if (std::find(connections.begin(), connections.end(), connection) == connections.end()) {
    connections.push_back(connection);
  }
  current_answers->held_count_ += 1;
  return true;
}

void HeldAnswers::Send() {
  if (connections_.empty()) return;
  for (const auto& connection : connections_) connection->WriteAnswers();
  connections_.clear();
  held_count_ = 0;
}

}  // namespace millpond::rpc
