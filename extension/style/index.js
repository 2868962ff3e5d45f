import './panel.css';
import './dashboard.css';
