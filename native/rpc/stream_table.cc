#include "native/rpc/stream_table.h"

#include <algorithm>

namespace millpond::rpc {

Stream* StreamTable::Find(int32_t number) const {
  const auto found = streams_.find(number);
  return found == streams_.end() ? nullptr : found->second.get();
}

Stream* StreamTable::FindUnanswered(int32_t number) const {
  Stream* const stream = Find(number);
  return stream == nullptr || stream->is_answered() ? nullptr : stream;
}

bool StreamTable::IsReceiving(int64_t since_ns) const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [&](const auto& item) { return item.second->IsReceiving(since_ns); });
}

// --- Events ---

// Returns true if the server's limit has room, or else this connection's share of it. So a flood on
// one connection refuses no stream of another, and all connections together take at most twice the
// limit.
bool StreamTable::HasRoomFor(int64_t bytes) const {
  const ServerShared& shared = *context_.shared;
  const int64_t bytes_max = shared.limits.open_call_bytes_max;
  const int64_t share = bytes_max / std::max<int64_t>(shared.connection_count.load(), 1);
  return shared.call_counts.open_bytes.load(std::memory_order_relaxed) + bytes <= bytes_max ||
         open_bytes_.load(std::memory_order_relaxed) + bytes <= share;
}

void StreamTable::OnBegin(int32_t number) {
  life_.NoteCallBegun();
  ServerShared& shared = *context_.shared;
  const int64_t bytes = protocol_.stream_bytes();
  base::ByteBudget::Share charge(shared.calls.budget.get(), base::ByteBudget::Use::kCall);
  if (!HasRoomFor(bytes) || !charge.Resize(bytes)) {
    shared.limit_counts.Add(ReachedLimit::kArrivingBytes);
    return context_.session->Reset(number, ResetReason::kRefused);
  }
  streams_[number] = protocol_.MakeStream(&context_, number, std::move(charge),
                                          {&shared.call_counts, &open_bytes_, bytes});
  life_.NoteCalls(true, context_.now_ns);
}

void StreamTable::OnHeader(int32_t number, std::string_view name, std::string_view value) {
  if (Stream* const stream = FindUnanswered(number)) stream->OnHeader(name, value);
}

void StreamTable::OnHeadersEnd(int32_t number) {
  if (Stream* const stream = FindUnanswered(number)) stream->OnHeadersEnd();
}

void StreamTable::OnData(int32_t number, std::string_view data) {
  if (Stream* const stream = FindUnanswered(number)) stream->OnData(data);
}

void StreamTable::OnRequestEnd(int32_t number) {
  if (Stream* const stream = FindUnanswered(number)) stream->OnRequestEnd();
}

void StreamTable::OnDataSent(int32_t number) {
  if (Stream* const stream = Find(number)) stream->OnDataSent();
}

void StreamTable::OnStreamClosed(int32_t number) {
  const auto found = streams_.find(number);
  if (found == streams_.end()) return;
  found->second->Close();
  closed_.push_back(std::move(found->second));
  streams_.erase(found);
  if (streams_.empty()) life_.NoteCalls(false, context_.now_ns);
}

// --- What the connection has done ---

void StreamTable::CloseAll() {
  for (auto& [number, stream] : streams_) {
    stream->Close();
    closed_.push_back(std::move(stream));
  }
  streams_.clear();
}

// Most of the streams are gone by now, because all of their answer is written.
void StreamTable::CountUnread() {
  for (const int32_t number : context_.answered) {
    if (Stream* const stream = Find(number)) stream->CountUnread();
  }
  context_.answered.clear();
}

std::optional<double> StreamTable::Pace() const {
  std::optional<double> slowest;
  for (const auto& [number, stream] : streams_) {
    const auto pace = stream->Pace();
    if (!pace) return {};
    if (!slowest || *pace < *slowest) slowest = pace;
  }
  return slowest;
}

void StreamTable::GiveUp() {
  for (const auto& [number, stream] : streams_) {
    if (stream->Pace()) stream->GiveUp();
  }
}

void StreamTable::EndPaused() {
  const int64_t pause_ns = context_.shared->limits.pause_ns;
  if (pause_ns <= 0) return;
  for (auto& [number, stream] : streams_) {
    if (!stream->EndIfPaused(context_.now_ns - pause_ns)) continue;
    context_.shared->limit_counts.Add(ReachedLimit::kPause);
  }
}

}  // namespace millpond::rpc
