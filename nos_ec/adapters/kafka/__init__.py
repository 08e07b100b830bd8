"""The message log on Kafka, through librdkafka (confluent-kafka). Import `message_log` only when it is configured."""
