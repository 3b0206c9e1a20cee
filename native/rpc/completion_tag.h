#pragma once

namespace millpond::rpc {

// What a completion queue hands back: who goes on, and how. Lives in the call it belongs to.
class CompletionTag {
 public:
  virtual ~CompletionTag() = default;
  // On a poller's thread. `ok` is what gRPC says: for a request, that there is a call; for a reply,
  // that it went out.
  virtual void Proceed(bool ok) = 0;
};

// A tag that calls a member function of the call it lives in.
template <typename Call>
class MemberTag final : public CompletionTag {
 public:
  using Member = void (Call::*)(bool ok);

  MemberTag(Call* call, Member member) : call_(call), member_(member) {}
  void Proceed(bool ok) override { (call_->*member_)(ok); }

 private:
  Call* const call_;
  const Member member_;
};

}  // namespace millpond::rpc
