"""An OpenAI-compatible router for prefill and decode engines that carry KV with kvferry."""
