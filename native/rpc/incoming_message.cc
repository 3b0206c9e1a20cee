#include "native/rpc/incoming_message.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "native/base/no_memory.h"

namespace millpond::rpc {
namespace {

// Messages of up to this length may use the budget's reserve, unless they are requests to models.
constexpr int64_t kShortBytesMax = 4096;

// Messages of up to this length are copied into one piece, because the copy costs less than
// decoding several pieces.
constexpr int64_t kSmallBytesMax = 8192;

}  // namespace

base::ByteBudget::Use UseOf(int64_t bytes, bool is_of_model) {
  const bool is_short = bytes <= kShortBytesMax && !is_of_model;
  return is_short ? base::ByteBudget::Use::kCall : base::ByteBudget::Use::kMessage;
}

IncomingMessage::IncomingMessage(const MessageOptions& options) : options_(options) {
  if (!options_.is_bare) return;
  // A bare message may have any length until it ends.
  prefix_bytes_ = kMessagePrefixBytes;
  announced_bytes_ = INT64_MAX;
  share_ = base::ByteBudget::Share(options_.budget, UseOf(0, options_.is_of_model));
}

base::Status IncomingMessage::Add(std::string_view* data, ReceiveSpace* space) {
  if (prefix_bytes_ < kMessagePrefixBytes) {
    const size_t size = std::min(data->size(), kMessagePrefixBytes - prefix_bytes_);
    std::memcpy(prefix_ + prefix_bytes_, data->data(), size);
    prefix_bytes_ += size;
    data->remove_prefix(size);
    if (prefix_bytes_ < kMessagePrefixBytes) return {};
    MILLPOND_RETURN_IF_ERROR(ReadPrefix());
  }
  const auto left = static_cast<size_t>(announced_bytes_ - arrived_bytes_);
  const std::string_view part = data->substr(0, left);
  data->remove_prefix(part.size());
  return part.empty() ? base::Status() : AddBody(part, space);
}

base::Status IncomingMessage::ReadPrefix() {
  if (static_cast<unsigned char>(prefix_[0]) > 1) {
    return base::Internal("the first byte of a message must be 0 or 1 (compressed)");
  }
  is_compressed_ = prefix_[0] == 1;
  uint32_t size = 0;
  for (int i = 0; i < 4; ++i) size = size << 8U | static_cast<unsigned char>(prefix_[1 + i]);
  announced_bytes_ = size;
  if (announced_bytes_ > options_.bytes_max) {
    return {base::Code::kResourceExhausted,
            "the message has " + std::to_string(announced_bytes_) +
                " bytes, and its method takes at most " + std::to_string(options_.bytes_max) +
                " (--max_request_bytes, or less for this method); send less"};
  }
  // A short message may decompress to a long one.
  const int64_t bytes_max = is_compressed_ ? options_.bytes_max : announced_bytes_;
  share_ = base::ByteBudget::Share(options_.budget, UseOf(bytes_max, options_.is_of_model));
  return {};
}

bool IncomingMessage::is_small() const {
  if (options_.is_bare && parts_.empty() && arrived_bytes_ <= kSmallBytesMax) return true;
  return options_.is_in_one_piece || announced_bytes_ <= kSmallBytesMax;
}

base::Status IncomingMessage::AddBody(std::string_view data, ReceiveSpace* space) {
  arrived_bytes_ += static_cast<int64_t>(data.size());
  if (!share_.Add(static_cast<int64_t>(data.size()))) {
    return base::NoMemoryFor(
        "a message of " + std::to_string(options_.is_bare ? arrived_bytes_ : announced_bytes_) +
            " bytes",
        *share_.budget());
  }
  if (is_small()) {
    if (announced_bytes_ <= kSmallBytesMax) small_.reserve(bytes());
    small_.append(data);
    return {};
  }
  // A bare message that has turned out to be long.
  if (!small_.empty()) AddCopy(std::exchange(small_, {}));
  if (data.size() >= ReceiveBlock::kHeldBytesMin) {
    const std::shared_ptr<ReceiveBlock>& block = space->Hold();
    if (owners_.empty() || owners_.back() != block) owners_.push_back(block);
    parts_.push_back(data);
  } else {
    AddCopy(data);
  }
  return {};
}

// Small parts share a block, which is no larger than what has arrived: a message in parts of one
// byte takes twice its bytes, and not a hundred times.
void IncomingMessage::AddCopy(std::string_view data) {
  if (copy_ == nullptr || copy_->capacity() - copy_->size() < data.size()) {
    copy_ = std::make_shared<std::string>();
    copy_->reserve(std::max(
        data.size(), std::min(static_cast<size_t>(arrived_bytes_), ReceiveBlock::kHeldBytesMin)));
    owners_.push_back(copy_);
    parts_.emplace_back(copy_->data(), 0);
  } else if (owners_.back() != copy_) {
    owners_.push_back(copy_);
    parts_.emplace_back(copy_->data() + copy_->size(), 0);
  }
  copy_->append(data);
  parts_.back() = {parts_.back().data(), parts_.back().size() + data.size()};
}

std::vector<std::string_view> IncomingMessage::raw_segments() const {
  if (!is_small()) return parts_;
  if (small_.empty()) return {};
  return {small_};
}

const base::Status& IncomingMessage::Read() {
  if (std::exchange(is_read_, true)) return read_status_;
  segments_ = raw_segments();
  if (!is_compressed_) return read_status_;
  read_status_ = Decompress(options_.encoding, segments_, options_.bytes_max, &inflated_, &share_);
  segments_.assign(inflated_.begin(), inflated_.end());
  return read_status_;
}

void IncomingMessage::ForgetRead() {
  is_read_ = false;
  segments_.clear();
  inflated_.clear();
  read_status_ = {};
  if (is_compressed_) share_.Resize(std::min(announced_bytes_, share_.bytes()));
}

base::StatusOr<base::ChargedText> IncomingMessage::TakeText() {
  if (is_small() && !is_compressed_) {
    base::ChargedText text{std::move(small_), std::move(share_)};
    Free();
    return {std::move(text)};
  }
  const auto bytes = static_cast<int64_t>(reader().remaining_bytes());
  base::ChargedText copy{
      {}, base::ByteBudget::Share(options_.budget, UseOf(bytes, options_.is_of_model))};
  if (!copy.share.Resize(bytes)) {
    return base::NoMemoryFor("a copy of a message of " + std::to_string(bytes) + " bytes",
                             *options_.budget);
  }
  copy.text.reserve(static_cast<size_t>(bytes));
  reader().AppendRest(&copy.text);
  Free();
  return {std::move(copy)};
}

void IncomingMessage::Free() {
  segments_.clear();
  parts_.clear();
  inflated_.clear();
  owners_.clear();
  copy_.reset();
  small_ = {};
  share_.Resize(0);
}

}  // namespace millpond::rpc
