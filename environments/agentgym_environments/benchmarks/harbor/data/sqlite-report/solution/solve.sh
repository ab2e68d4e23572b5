#!/bin/bash
set -e
cat > /app/report.sql <<'SQL'
WITH good AS (
    SELECT id, customer_id, discount FROM orders WHERE time >= '2025' AND time < '2026' AND status <> 'canceled'
),
sums AS (
    SELECT good.customer_id, SUM(items.count * items.price * (100 - good.discount) / 100) AS revenue
    FROM good JOIN items ON items.order_id = good.id GROUP BY good.customer_id
),
pieces AS (
    SELECT good.customer_id, products.name,
           ROW_NUMBER() OVER (PARTITION BY good.customer_id ORDER BY SUM(items.count) DESC, products.name) AS place
    FROM good JOIN items ON items.order_id = good.id JOIN products ON products.id = items.product_id
    GROUP BY good.customer_id, products.id
)
SELECT customers.name AS customer,
       (SELECT COUNT(*) FROM good WHERE good.customer_id = customers.id) AS orders,
       ROUND(COALESCE(sums.revenue, 0), 2) AS revenue,
       pieces.name AS favorite,
       EXISTS (SELECT 1 FROM orders WHERE customer_id = customers.id AND time < '2025' AND status <> 'canceled') AS "returning"
FROM customers
LEFT JOIN sums ON sums.customer_id = customers.id
LEFT JOIN pieces ON pieces.customer_id = customers.id AND pieces.place = 1
WHERE customers.deleted = 0
  AND EXISTS (SELECT 1 FROM orders WHERE customer_id = customers.id AND time >= '2025' AND time < '2026')
ORDER BY ROUND(COALESCE(sums.revenue, 0), 2) DESC, customers.name, customers.id
SQL
